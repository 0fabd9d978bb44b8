// Turns a row of logits into a token. Randomness is counter-based: the draw at a position depends on (seed,
// position, purpose) and on the logits alone, so batch mates, drafts, chunking and preemption cannot change
// it. Greedy when temperature is 0. Source: serving specification 11 (Gumbel-max sampling); house rule
// "numbers that never depend on company". Threads: pure functions; a TokenHistory has one owner.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct SamplingParams {
  double temperature = 0.0;  // 0: greedy
  double top_p = 1.0;        // (0, 1]
  int top_k = 0;             // 0: all
  double min_p = 0.0;        // [0, 1): keep tokens with at least this share of the best token's probability
  uint64_t seed = 0;
  // Corrections of the logits before temperature and filters, in this order.
  double repetition_penalty = 1.0;  // > 0; ids seen in prompt or output: positive logits / r, others * r
  double frequency_penalty = 0.0;   // [-2, 2]; taken off once per occurrence in the output
  double presence_penalty = 0.0;    // [-2, 2]; taken off once if the id occurs in the output
  std::vector<std::pair<int32_t, double>> logit_bias;  // added; ascending ids, each once
};

// kInvalidArgument naming the field that is out of range. Ids of logit_bias: only their order is checked.
Status validate(const SamplingParams& params);

// kToken: the target's own draw. The others belong to the ratio rule (acceptance.h), which needs draws that
// are independent of each other.
enum class DrawPurpose : uint32_t { kToken = 1, kDraft = 2, kAccept = 3, kResidual = 4 };

// Uniform in (0, 1), a pure function of its arguments.
double counter_uniform(uint64_t seed, int64_t position, DrawPurpose purpose, uint32_t index);

// What the penalties count. Going back is popping what was pushed.
class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> ids);
  void push(int32_t id) { ++counts_[id].output; }
  void pop(int32_t id);  // REQUIRES that it was pushed more often than popped
  struct Count {
    bool prompt = false;
    int32_t output = 0;
  };
  const std::unordered_map<int32_t, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, Count> counts_;
};

// Whether adjust_logits would change anything, and whether it needs the history.
bool has_penalties(const SamplingParams& params);
inline bool adjusts_logits(const SamplingParams& params) {
  return has_penalties(params) || !params.logit_bias.empty();
}
// out = logits with penalties and bias applied, [vocab]. Each id is corrected on its own, in double, so the
// order of the history does not show.
template <typename A>
void adjust_logits(const A* logits, int64_t vocab, const SamplingParams& params, const TokenHistory& history,
                   A* out);

// Ids that may not be drawn: both lists ascending; `mask` as in constraint.h, empty: all allowed.
struct DrawRules {
  std::span<const int32_t> banned, also_banned;
  std::span<const uint32_t> mask;
};

// The token for `position` from (corrected) logits [vocab]. Order of the filters: rules, temperature, top-k,
// top-p, min-p; the kept token with the largest log-probability plus Gumbel noise wins, which is an exact
// draw from the filtered distribution. Non-finite logits are never chosen. -1 if no token is left.
template <typename A>
int32_t draw(const A* logits, int64_t vocab, int64_t position, const SamplingParams& params,
             const DrawRules& rules);

// What draw() draws from: the kept ids, ascending, with probabilities that sum to 1. Greedy: one id. Empty if
// no token is left.
using Distribution = std::vector<std::pair<int32_t, double>>;
template <typename A>
Distribution distribution(const A* logits, int64_t vocab, const SamplingParams& params,
                          const DrawRules& rules);

// The same with banned ids (ascending) only; 0 if no token is left.
template <typename A>
int32_t sample(const A* logits, int64_t vocab, int64_t position, const SamplingParams& params,
               const std::vector<int32_t>& banned = {});

// log of the sum of exp(logits), in double, summed over ascending ids: the log-probability of id is
// logits[id] - this. Non-finite logits count as impossible.
template <typename A>
double log_sum_exp(const A* logits, int64_t vocab);
// The k most likely ids with their log-probabilities, best first, lower ids first on ties.
template <typename A>
std::vector<std::pair<int32_t, double>> top_logprobs(const A* logits, int64_t vocab, double log_sum, int k);

}  // namespace deepinfer
