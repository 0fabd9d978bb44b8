// Which model a command runs: the directory given, or the default that needs no argument. Shared by the
// commands that generate.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "base/status.h"
#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct LoadedModel {
  std::string dir;
  std::string notice;  // one line for a person when the model is a stand-in; empty otherwise
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<Tokenizer> tokenizer;
};

// `dir` empty: the shipped small model (DEEPINFER_MODEL, or models/deepinfer-tiny beside the program or in
// its source tree), else a synthetic t1 checkpoint made in the user's cache folder, and the notice says so.
Result<LoadedModel> load_model(const std::string& dir, const LoadOptions& options = {});

// The option `--expert-memory MIB` of commands that run a model.
void add_expert_memory(CLI::App* command, int64_t* mib);
// --routing of the benches.
void add_routing(CLI::App* command, Routing* routing);

}  // namespace deepinfer
