// Paired comparisons of two ways to run the same tokens: bounded replay against exact decoder state, and the
// candidate pool against none. Positions are scored with the true tokens given, so both sides see the same
// text and every difference is the way's. Reads no files and prints nothing. Source: model specification 3.4
// and 10.2; docs/evaluation.md. Threads: one caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/eval_measures.h"

namespace deepinfer {

// How one way differs from the other over a set of positions.
struct Difference {
  int64_t documents = 0, positions = 0;
  Interval perplexity_ratio;       // 1: no cost
  Interval top_token_change_rate;  // share of positions whose most likely token differs
  Interval moved_share;            // ... whose true token's probability moves by more than a tenth of itself
};

// Collects positions document by document. `way` and `base` score the same tokens.
class DifferenceTally {
 public:
  void add(const Scored& way, const Scored& base);
  void add(const DifferenceTally& other);
  Difference result() const;

 private:
  std::vector<Cluster> delta_, changed_, moved_;
};

// Prompts of a length, cut from texts one after the other; documents are joined when one is too short. Each
// has BOS first, length + scored tokens, and is one document of the statistics.
struct PromptPlan {
  int64_t length = 0;  // tokens before the boundary
  int64_t scored = 0;  // tokens after it
  int64_t most = 0;    // prompts per text
};
std::vector<std::vector<int32_t>> cut_prompts(const EvalText& text, const PromptPlan& plan, int32_t bos);

struct LengthDifference {
  int64_t length = 0;
  Difference difference;
};

struct ReplayComparison {
  int64_t keep = 0, control_keep = 0;
  Difference all;
  std::vector<LengthDifference> lengths;
  Difference control;  // replay so long that it must change nothing: 1, 0, 0 exactly, or the engine is wrong
};
// Prefill with bounded replay (`keep` rows, as GenerateOptions::keep) against exact state, scored right after
// the boundary. Plans whose prompts no text can fill are left out.
Result<ReplayComparison> compare_replay(EvalRunner* runner, const std::vector<EvalText>& texts, int64_t keep,
                                        const std::vector<PromptPlan>& plans);

struct PoolComparison {
  struct Suite {
    std::string name;
    int64_t n = 0, pool = 0, no_pool = 0;  // right answers
    int64_t differ = 0;                    // items whose two answers are not the same
  };
  int64_t pool_entries = 0;  // contexts up to here are never cut
  Difference all;
  std::vector<LengthDifference> lengths;
  std::vector<Suite> suites;
};
// `without` runs the same weights with candidate_source_layer_id -1.
Result<PoolComparison> compare_pool(EvalRunner* with, EvalRunner* without, const std::vector<EvalText>& texts,
                                    const std::vector<EvalSuite>& suites, int64_t keep,
                                    const std::vector<PromptPlan>& plans);

}  // namespace deepinfer
