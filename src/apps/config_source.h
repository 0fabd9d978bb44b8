// Which configuration a command means: a built-in name, a checkpoint directory or a config file, and the
// slice of it that its options ask for. Shared by synth and inspect. Threads: none.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/config.h"

namespace deepinfer {

struct SliceOptions {
  int layers = 0;            // 0: all
  int experts = 0;           // 0: all
  int64_t engram_start = 0;  // 0: as the configuration says
  bool any() const { return layers != 0 || experts != 0 || engram_start != 0; }
};
void add_slice_options(CLI::App* command, SliceOptions* slice);

// A built-in name wins over a file of the same name (write ./NAME for the file). Errors: kNotFound listing
// what could have been meant, those of parsing and validating.
Result<ModelConfig> named_config(const std::string& name_or_path);

// named_config, cut by `slice`. Errors: also kInvalidArgument for a slice that breaks a rule.
Result<ModelConfig> sliced_config(const std::string& name_or_path, const SliceOptions& slice);

}  // namespace deepinfer
