// One sequence from prompt to stop: chunked prefill with bounded replay, then decode with or without drafts.
// The simplest user of the forward pass; a scheduler for many sequences is another matter. The tokens
// produced are the same with and without drafts, whatever the chunk size. Source: model
// specification 6.4, 10.2. Threads: one caller; `stop` may be set from a signal handler or another thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/forward.h"
#include "engine/sampler.h"

namespace deepinfer {

struct GenerateOptions {
  int64_t max_tokens = 256;
  SamplingParams sampling;
  bool speculate = true;
  int drafts = -1;      // drafts verified per step; -1: the model's block size
  int64_t chunk = 512;  // prefill rows per call
  int64_t keep = 0;  // decoder rows at the end of prefill; 0: window + drafts + 1; negative: exact (all rows)
  std::vector<int32_t> stop_ids;    // ascending; the stop token itself is not reported
  std::vector<int32_t> banned_ids;  // ascending; never produced
};

struct GenerateStats {
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t steps = 0, drafted = 0, accepted = 0;
  int64_t prefill_ns = 0, decode_ns = 0;
  enum class Finish { kStop, kLength, kCancelled } finish = Finish::kLength;
};

// Calls `on_token` for every token as it is decided; returning false ends generation (kCancelled). Errors:
// kInvalidArgument (empty prompt, an id outside the vocabulary, longer than the context), kResourceExhausted
// (cache blocks). `now_ns` gives the time for the statistics.
template <typename A>
Result<GenerateStats> generate(Forward<A>* model, BlockPool* blocks, const std::vector<int32_t>& prompt,
                               const GenerateOptions& options, const std::function<bool(int32_t)>& on_token,
                               const std::function<int64_t()>& now_ns,
                               const std::atomic<bool>* stop = nullptr);

}  // namespace deepinfer
