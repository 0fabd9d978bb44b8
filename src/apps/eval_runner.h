// Runs many token sequences through the engine for `deepinfer eval`: decodes prompts and scores given texts,
// many sequences per call of the forward pass. What a sequence produces does not depend on the others (the
// forward pass's contract), so batching only saves time. Knows no suites and judges nothing. Source: model
// specification 6.3, 6.4, 10.2. Threads: one caller; work is spread over the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/eval_stats.h"
#include "base/status.h"
#include "engine/forward.h"
#include "engine/sampler.h"

namespace deepinfer {

struct DecodeRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  SamplingParams sampling;
};

struct DecodeOptions {
  std::vector<int32_t> stop_ids;    // ascending
  std::vector<int32_t> banned_ids;  // ascending; never produced
  int64_t keep = 0;                 // as GenerateOptions::keep
  bool speculate = false;           // draft and verify; the tokens are the same
};

// A text whose continuation is known: rows [0, tokens.size() - 1) run, the tokens at positions >= `from` are
// scored.
struct ScoreRequest {
  std::vector<int32_t> tokens;
  int64_t from = 1;           // >= 1
  int64_t decoder_floor = 0;  // bounded replay: decoder layers start here; <= from - 1
};

struct Scored {
  std::vector<double> log_probability;  // natural, of the true token, one per scored position
  std::vector<int32_t> top;             // the model's own choice there; the lower id on ties
};

class EvalRunner {
 public:
  // `weights` and `pool` outlive this object. `stop` is asked between calls of the forward pass; may be
  // empty.
  EvalRunner(const ModelWeights* weights, ThreadPool* pool, std::function<bool()> stop = {});

  const ModelConfig& config() const { return model_.config(); }

  // Tokens per request, the stop token last when one ended it. With `speculate` every step of every sequence
  // goes into `tally` (may be null). Errors: kInvalidArgument (empty prompt, bad id, longer than the
  // context), kCancelled, kResourceExhausted.
  Result<std::vector<std::vector<int32_t>>> decode(const std::vector<DecodeRequest>& requests,
                                                   const DecodeOptions& options, DraftTally* tally);

  // `draft_every` > 0: also drafts after every so many positions, with the true next token, and counts the
  // drafts that continue the text. Errors as decode.
  Result<std::vector<Scored>> score(const std::vector<ScoreRequest>& requests, int64_t draft_every = 0,
                                    DraftTally* tally = nullptr);

 private:
  struct Active;
  struct Scoring;
  Status check(const std::vector<int32_t>& tokens, int64_t total) const;
  bool stopped() const { return stop_ && stop_(); }
  Status admit(const DecodeRequest& request, const DecodeOptions& options, size_t index,
               std::vector<Active>* active);
  Status prefill(std::vector<Active>* active, size_t first, const std::vector<DecodeRequest>& requests,
                 const DecodeOptions& options);
  Status step(std::vector<Active>* active, const std::vector<DecodeRequest>& requests,
              const DecodeOptions& options);
  Status score_call(std::vector<Scoring>* active, const std::vector<ScoreRequest>& requests, int64_t chunk,
                    std::vector<Scored>* out);
  void draft_true(const Scoring& s, const ScoreRequest& request, DraftTally* tally);

  ThreadPool* pool_;
  Forward<float> model_;
  BlockPool blocks_;
  std::function<bool()> stop_;
};

}  // namespace deepinfer
