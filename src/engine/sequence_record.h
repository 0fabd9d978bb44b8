// What the step runner knows of one choice, and of one choice's rows in the step at hand. Private to the step
// runner. Threads: inside a step one worker at a time.
#pragma once

#include <algorithm>

#include "engine/acceptance.h"
#include "engine/step_runner.h"

namespace deepinfer {

// Logits held at once while a prompt's own tokens are scored.
inline constexpr int64_t kScoreBytes = 32 << 20;

struct StepRunner::Sequence {
  explicit Sequence(std::shared_ptr<const NewSequence> from)
      : origin(std::move(from)),
        sampling(origin->request->sampling),
        tokens(origin->request->prompt),
        keys(origin->prompt_blocks),
        last_key(origin->last_key) {
    sampling.seed = choice_seed(sampling.seed, origin->choice);
    counts = has_penalties(sampling);
    if (counts) history.add_prompt(tokens);
    if (request().constraint != nullptr) constraint = request().constraint->clone();
  }

  const EngineRequest& request() const { return *origin->request; }
  bool is_stop(int32_t id) const {
    return std::binary_search(request().stop_ids.begin(), request().stop_ids.end(), id);
  }
  // Whether rows of the prompt are still to be scored.
  bool scores_prompt() const {
    return request().prompt_logprobs && prompt_logprobs.size() + 1 < request().prompt.size() && produced == 0;
  }

  std::shared_ptr<const NewSequence> origin;
  SamplingParams sampling;               // with the choice's own seed
  std::unique_ptr<SequenceState> state;  // null while it is preempted
  policy::StateOrigin window_from = policy::StateOrigin::kCold;
  std::shared_ptr<LoadGate> gate;  // of a load that may not have ended
  bool entered = false;            // the window its rows continue from is in place
  std::vector<int32_t> tokens;     // while it has no state
  TokenHistory history;            // when penalties count
  bool counts = false;
  std::unique_ptr<TokenConstraint> constraint;  // has taken every token produced
  int64_t produced = 0;
  int64_t keys = 0;  // blocks with a key
  Digest last_key{};
  std::vector<TokenEvent> prompt_logprobs;
  bool over = false;
};

struct StepRunner::Work {
  Sequence* s = nullptr;
  const policy::RowRun* run = nullptr;
  RunOutcome* outcome = nullptr;
  RowSpan rows;  // the part that runs together with the others
  int64_t most_drafts = 0;
  std::vector<float> confidence;         // the head's logits, if the draft stages guessed
  std::vector<Distribution> drawn_from;  // ratio rule: what each draft was drawn from
  std::vector<int32_t> drafts;           // guesses for rows after the first
  size_t first_row = 0, row_count = 0;   // in the logits
};

}  // namespace deepinfer
