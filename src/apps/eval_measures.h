// The plain measures of `deepinfer eval`: exact match of suites, perplexity of texts by context, what
// drafting does, and a user's own items with pass@k. Reads no files and prints nothing. Source:
// docs/evaluation.md. Threads: one caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/eval_runner.h"
#include "apps/eval_suites.h"
#include "text/tokenizer.h"

namespace deepinfer {

// What a wrong item looked like, for a person.
struct EvalFailure {
  int64_t item = 0;  // 0-based place in the suite
  std::vector<int32_t> expected, produced;
};

struct SkillResult {
  std::string name;
  int64_t n = 0, right = 0;
  std::vector<EvalFailure> failures;  // the first few
  double score() const { return n > 0 ? static_cast<double>(right) / static_cast<double>(n) : 0.0; }
};

// Greedy decode of every item; right means exactly the expected ids. Nothing is banned: the score is of the
// model.
Result<SkillResult> run_suite(EvalRunner* runner, const EvalSuite& suite, int64_t keep, size_t max_failures,
                              DraftTally* tally);

struct TextResult {
  struct Bucket {
    int64_t begin = 0, end = 0;  // tokens of context: positions [begin, end)
    int64_t n = 0;
    double sum = 0;  // of negative log-probabilities
    double perplexity() const;
  };
  std::string name;
  Bucket all;
  std::vector<Bucket> buckets;  // without empty ones
};

// Exact state, every position of every document up to `max_tokens` of each (0: whole, never beyond the
// context). With `tally`, drafts against the true continuation after every `draft_every` positions.
Result<TextResult> run_text(EvalRunner* runner, const EvalText& text, int64_t max_tokens, int64_t draft_every,
                            DraftTally* tally);

struct UserResult {
  std::string name;
  int64_t samples = 1;         // per item, seeds 0 .. samples - 1
  std::vector<int64_t> right;  // per item, of `samples`
  std::vector<EvalFailure> failures;
  double pass_at(int64_t k) const;  // mean over items; k <= samples
};

struct UserOptions {
  int64_t samples = 1;
  SamplingParams sampling;  // its seed is replaced
  int64_t keep = 0;
  size_t max_failures = 0;
};
// Items with text expectations stop at the end of sequence, which is not part of the text.
Result<UserResult> run_user_suite(EvalRunner* runner, const Tokenizer& tokenizer, const EvalSuite& suite,
                                  const UserOptions& options);

}  // namespace deepinfer
