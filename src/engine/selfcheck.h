// How far native mode is from exact arithmetic on a given checkpoint, beside what the vendor's rounding
// points alone would do. Source: model specification 8.5. Threads: one caller.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/weights.h"
#include "host/thread_pool.h"

namespace deepinfer {

// Of one numeric mode against math mode (double precision, cache quantisers on), over all positions of a
// text.
struct Divergence {
  int64_t positions = 0;
  double top1_agreement = 0;                   // share of positions with the same most likely token
  double kl_mean = 0, kl_p99 = 0, kl_max = 0;  // KL(math || mode) in nats
};

struct SelfcheckResult {
  Divergence native;    // what this program serves
  Divergence ref_mode;  // the simulated rounding points of 8.5
};

// Runs `tokens` (exact prefill, all positions) three times. REQUIRES ids inside the vocabulary, at least one
// token.
Result<SelfcheckResult> selfcheck(const ModelWeights& weights, const std::vector<int32_t>& tokens,
                                  ThreadPool* pool);

}  // namespace deepinfer
