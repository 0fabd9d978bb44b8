// Times the forward pass itself, without scheduler, sampler or edge: decode steps of some sequences at some
// context, and prefill chunks. States bytes and operations per second as shares of the limits measured in the
// same run, and where the time goes. Old context is stand-in content of the right size: random records fill
// the cache blocks, as computing a long prefix would take longer than the bench. Source: docs/performance.md.
// Threads: one caller.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/bench_limits.h"
#include "base/status.h"
#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "engine/step_profile.h"
#include "host/thread_pool.h"

namespace deepinfer {

struct StepBenchOptions {
  std::vector<int64_t> rows;      // decode: sequences of one row each; prefill: rows of the one chunk
  std::vector<int64_t> contexts;  // positions before the rows
  int steps = 24;                 // timed calls of a point; the median counts
  bool profile = false;           // a line per part of the step as well
  Routing routing = Routing::kModel;
};

// What a point measured.
struct StepPoint {
  int64_t rows = 0, context = 0;
  bool head = true;
  double seconds = 0;          // median of one call
  double bytes = 0, macs = 0;  // of one call, mean
  double jobs = 0;             // hand-outs to the threads per call
  StepProfile profile;         // of all timed calls
  ExpertUse experts;           // since the point began, where their memory is bounded
};

// Every rows x contexts point, decode with and without the head. kInvalidArgument when a point does not fit
// the model's context, kResourceExhausted when its caches do not fit the memory.
Result<std::vector<StepPoint>> measure_decode(const ModelWeights& weights, ThreadPool* pool,
                                              const StepBenchOptions& options);
// One chunk of `rows` rows after `context` positions; the decoder half runs its last window of rows only, as
// in serving.
Result<std::vector<StepPoint>> measure_prefill(const ModelWeights& weights, ThreadPool* pool,
                                               const StepBenchOptions& options);

// The points as bench lines: decode in GB/s against the read limit, prefill in Gop/s against the int8 limit.
std::vector<BenchLine> decode_lines(const std::vector<StepPoint>& points,
                                    const std::vector<BenchLine>& limits, int threads, bool profile);
std::vector<BenchLine> prefill_lines(const std::vector<StepPoint>& points,
                                     const std::vector<BenchLine>& limits, int threads, bool profile);

// What one decoded token reads, and what one prefilled token multiplies, on a whole model: by arithmetic from
// its configuration, every row touching its own experts. Context is left out.
struct TokenCost {
  double bytes = 0;
  double encoder_macs = 0, decoder_macs = 0, head_macs = 0;
};
TokenCost token_cost(const ModelConfig& config);

}  // namespace deepinfer
