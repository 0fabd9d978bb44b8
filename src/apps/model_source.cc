// Finds and loads the model of a command.
#include "apps/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

#include "checkpoint/resident.h"
#include "checkpoint/synth.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

// The shipped model: named by the environment, beside the program (build/release/bin/deepinfer -> models/),
// or installed.
std::string shipped_model() {
  if (const char* env = std::getenv("DEEPINFER_MODEL"); env != nullptr && *env != '\0') return env;
  std::error_code ec;
  fs::path exe = fs::read_symlink("/proc/self/exe", ec);
  if (ec) return {};
  for (fs::path dir = exe.parent_path(); dir.has_relative_path(); dir = dir.parent_path()) {
    for (const char* sub : {"models/deepinfer-tiny", "share/deepinfer/models/deepinfer-tiny"}) {
      if (fs::exists(dir / sub / "config.json", ec)) return (dir / sub).string();
    }
  }
  return {};
}

Result<std::string> synthetic_stand_in() {
  std::error_code ec;
  fs::path base;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    base = cache;
  else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    base = fs::path(home) / ".cache";
  else
    base = fs::temp_directory_path(ec);
  fs::path dir = base / "deepinfer" / "synthetic-t1";
  if (fs::exists(dir / "config.json", ec)) return dir.string();
  fs::create_directories(dir.parent_path(), ec);
  DI_ASSIGN(ModelConfig config, builtin_config("t1"));
  SynthOptions options;
  options.force = true;
  DI_TRY(synthesise(config, dir.string(), options));
  return dir.string();
}

}  // namespace

void add_routing(CLI::App* command, Routing* routing) {
  command->add_option("--routing", *routing, "Experts of a row: the model's, evenly spread, or drawn")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Routing>{
              {"model", Routing::kModel}, {"balanced", Routing::kBalanced}, {"random", Routing::kRandom}},
          CLI::ignore_case));
}

void add_weights_place(CLI::App* command, WeightsPlace* place) {
  command
      ->add_option("--weights", *place,
                   "map: read from the file's mapping; copy: in memory, every memory node its rows, in huge "
                   "pages; auto: copy where there are several memory nodes and room")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, WeightsPlace>{
              {"auto", WeightsPlace::kAuto}, {"map", WeightsPlace::kMapped}, {"copy", WeightsPlace::kCopied}},
          CLI::ignore_case));
}

WeightsPlace weights_place(const std::string& name) {
  return name == "copy" ? WeightsPlace::kCopied : name == "map" ? WeightsPlace::kMapped : WeightsPlace::kAuto;
}

std::unique_ptr<ThreadPool> make_pool(int64_t threads) {
  const int n = threads > 0 ? static_cast<int>(std::min<int64_t>(threads, 4096)) : ThreadPool::usable_cpus();
  const ThreadPlan plan = plan_threads(read_topology(), n);
  if (plan.groups > 1) return std::make_unique<ThreadPool>(plan, ThreadPool::Bind::kNode);
  return std::make_unique<ThreadPool>(n);
}

Result<std::string> place_weights(WeightsPlace place, ModelWeights* weights, ThreadPool* pool) {
  if (place == WeightsPlace::kMapped || (place == WeightsPlace::kAuto && pool->groups() == 1))
    return std::string();
  auto done = make_resident(weights, pool);
  if (!done.ok() && place == WeightsPlace::kAuto) return "weights stay mapped: " + done.status().message();
  if (!done.ok()) return done.status();
  const double seconds = static_cast<double>(done->ns) / 1e9;
  return fmt::format("{} MB of weights copied to {} memory node{} in {:.1f} s, {:.1f} GB/s",
                     done->bytes >> 20, pool->groups(), pool->groups() == 1 ? "" : "s", seconds,
                     static_cast<double>(done->bytes) / seconds / 1e9);
}

void add_expert_memory(CLI::App* command, int64_t* mib) {
  command
      ->add_option("--expert-memory", *mib,
                   "MiB of routed experts kept in memory, the most used ones; the others are read from the "
                   "checkpoint when needed (default: all are kept)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

Result<LoadedModel> load_model(const std::string& dir, const LoadOptions& options) {
  LoadedModel m;
  m.dir = dir.empty() ? shipped_model() : dir;
  if (m.dir.empty()) {
    DI_ASSIGN(m.dir, synthetic_stand_in());
    m.notice =
        "note: no trained model here yet; this is a synthetic checkpoint (t1) with random weights, so the "
        "text is noise: " +
        m.dir;
  }
  DI_ASSIGN(ModelWeights weights, load_checkpoint(m.dir, options));
  m.weights = std::make_unique<ModelWeights>(std::move(weights));
  DI_ASSIGN(Tokenizer tokenizer, Tokenizer::from_file((fs::path(m.dir) / "tokenizer.json").string()));
  if (tokenizer.vocab_size() > m.weights->config.vocab_size) {
    return error(Code::kInvalidData,
                 "{}/tokenizer.json has ids up to {} but the model's vocabulary has {}; the two do not "
                 "belong together",
                 m.dir, tokenizer.vocab_size() - 1, m.weights->config.vocab_size);
  }
  m.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  return m;
}

}  // namespace deepinfer
