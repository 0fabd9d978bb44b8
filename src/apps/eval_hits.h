// What a cache hit costs: the same continuations scored by the serving engine after a cold prompt, after a
// hit with a stored window, after a hit that had to replay, and across a preemption. The engine itself runs
// them, held to the true tokens, so what is measured is what is served. Reads no files and prints nothing.
// Source: serving specification 2.8, 3.2; docs/evaluation.md. Threads: one caller.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/eval_compare.h"
#include "checkpoint/weights.h"
#include "host/thread_pool.h"

namespace deepinfer {

struct HitComparison {
  struct Way {  // each against cold
    std::string name;
    Difference all;
    std::vector<LengthDifference> lengths;
    int64_t prompts = 0, prompt_tokens = 0, cached_tokens = 0;
    int64_t replayed = 0;     // prompts whose hit had no stored window
    int64_t preemptions = 0;  // of all prompts together
  };
  int64_t keep = 0;
  std::vector<Way> ways;  // hit, hit-replayed, preempted
};

// Plans whose prompts no text can fill are left out. `keep` as in compare_replay, not negative. `stop` is
// asked while waiting; may be empty. Errors: kInvalidData (texts too short), kCancelled, and the engine's
// own.
Result<HitComparison> compare_hits(const ModelWeights& weights, ThreadPool* pool,
                                   const std::vector<EvalText>& texts, int64_t keep,
                                   const std::vector<PromptPlan>& plans, const std::function<bool()>& stop);

}  // namespace deepinfer
