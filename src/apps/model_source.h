// Which model a command runs: the directory given, or the default that needs no argument. Shared by the
// commands that generate.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "base/status.h"
#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "host/thread_pool.h"
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

// Where weights lie: in the file's mapping, or copied into memory (checkpoint/resident.h). kAuto copies on a
// machine with several memory nodes, where there is room.
enum class WeightsPlace { kAuto, kMapped, kCopied };
void add_weights_place(CLI::App* command, WeightsPlace* place);  // --weights
WeightsPlace weights_place(const std::string& name);             // REQUIRES auto, map or copy

// The threads of a model: `threads` of them, 0: as many as usable CPUs; a group per memory node.
std::unique_ptr<ThreadPool> make_pool(int64_t threads);

// A line for a person about what was done, empty: nothing. Errors: of make_resident, with kCopied.
Result<std::string> place_weights(WeightsPlace place, ModelWeights* weights, ThreadPool* pool);

}  // namespace deepinfer
