// Turns a row of logits into a token. Randomness is counter-based: the draw at a position depends on (seed,
// position, purpose) and on the logits alone, so batch mates, drafts, chunking and preemption cannot change
// it. Greedy when temperature is 0. Source: serving specification 11 (Gumbel-max sampling); house rule
// "numbers that never depend on company". Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct SamplingParams {
  double temperature = 0.0;  // 0: greedy
  double top_p = 1.0;        // (0, 1]
  int top_k = 0;             // 0: all
  double min_p = 0.0;        // [0, 1): keep tokens with at least this share of the best token's probability
  uint64_t seed = 0;
};

// kInvalidArgument naming the field that is out of range.
Status validate(const SamplingParams& params);

enum class DrawPurpose : uint32_t { kToken = 1 };

// Uniform in (0, 1), a pure function of its arguments.
double counter_uniform(uint64_t seed, int64_t position, DrawPurpose purpose, uint32_t index);

// The token for `position` from logits [vocab]. Order of the filters: temperature, top-k, top-p, min-p; the
// kept token with the largest log-probability plus Gumbel noise wins, which is an exact draw from the
// filtered distribution. Non-finite logits are never chosen. Ids in `banned` (ascending) are never chosen.
template <typename A>
int32_t sample(const A* logits, int64_t vocab, int64_t position, const SamplingParams& params,
               const std::vector<int32_t>& banned = {});

}  // namespace deepinfer
