// Finds, parses and cuts the configuration of a command.
#include "apps/config_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "host/files.h"

namespace deepinfer {

void add_slice_options(CLI::App* command, SliceOptions* slice) {
  command
      ->add_option("--layers", slice->layers,
                   "Keep this many backbone layers, every role among them (even, at least 8)")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--experts", slice->experts,
                   "Keep this many routed experts per layer; draft experts shrink alike")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--engram-start", slice->engram_start,
                   "Start the search for Engram primes here: smaller tables than the release's")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 32));
}

Result<ModelConfig> named_config(const std::string& name_or_path) {
  const std::vector<std::string> names = builtin_config_names();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) return builtin_config(name_or_path);
  std::error_code ec;
  const std::filesystem::file_status status = std::filesystem::status(name_or_path, ec);
  if (std::filesystem::is_directory(status)) return read_checkpoint_config(name_or_path);
  if (!std::filesystem::exists(status)) {
    return error(Code::kNotFound,
                 "'{}' is neither a built-in configuration ({}) nor a checkpoint directory nor a config file",
                 name_or_path, fmt::join(names, ", "));
  }
  constexpr int64_t kMaxConfigBytes = 16'000'000;
  DI_ASSIGN(std::string text, read_file(name_or_path, kMaxConfigBytes));
  DI_ASSIGN(ModelConfig config, parse_config(text, name_or_path));
  config.name = name_or_path;
  return config;
}

Result<ModelConfig> sliced_config(const std::string& name_or_path, const SliceOptions& slice) {
  DI_ASSIGN(ModelConfig config, named_config(name_or_path));
  if (!slice.any()) return config;
  return slice_config(config, slice.layers == 0 ? config.num_hidden_layers : slice.layers, slice.experts,
                      slice.engram_start);
}

}  // namespace deepinfer
