// From logits to tokens: the target's own draw at every row, how far the guesses were right, why a choice is
// over. Source: serving specification 11, 12.5.
#include <algorithm>

#include "engine/prefix_identity.h"
#include "engine/sequence_record.h"

namespace deepinfer {

TokenEvent StepRunner::event_of(const float* row, int32_t id, int top) const {
  TokenEvent e;
  e.id = id;
  if (top < 0) return e;
  double sum = log_sum_exp(row, vocab_);
  e.logprob = static_cast<double>(row[id]) - sum;
  e.top = top_logprobs(row, vocab_, sum, top);
  return e;
}

// Rows of the prompt: row i of `rows` is the position whose successor is the next token to score.
void StepRunner::score_prompt(Sequence* s, const ForwardResult<float>& r, size_t first_row, int64_t rows) {
  const std::vector<int32_t>& prompt = s->request().prompt;
  size_t from = s->prompt_logprobs.size();
  size_t n = std::min(static_cast<size_t>(rows), prompt.size() - 1 - from);
  for (size_t i = 0; i < n; ++i) {
    DI_CHECK(r.rows[first_row + i].position == static_cast<int64_t>(from + i),
             "prompt rows are out of order");
    s->prompt_logprobs.push_back(
        event_of(r.row(first_row + i), prompt[from + i + 1], std::max(0, s->request().top_logprobs)));
  }
}

namespace {

// The target's draw, or the ratio rule's when `d` is given.
int32_t pick_from(const float* logits, int64_t vocab, int64_t position, const SamplingParams& p,
                  const DrawRules& rules, const Distribution* drawn_from, const int32_t* guess,
                  bool ratio_rule) {
  if (!ratio_rule) return draw(logits, vocab, position, p, rules);
  Distribution target = distribution(logits, vocab, p, rules);
  if (target.empty()) return -1;
  if (guess == nullptr || drawn_from == nullptr) return draw_bonus(target, p.seed, position);
  return accept_by_ratio(target, *drawn_from, *guess, p.seed, position).token;
}

}  // namespace

// The token for a position; -1 and the reason if there is none. `i`: which of the step's rows; its draft, if
// it has one, is work.drafts[i].
int32_t StepRunner::pick(Sequence* s, const float* row, int64_t position, const Work& work, size_t i,
                         std::vector<float>* scratch, std::vector<uint32_t>* mask, Status* why) {
  const EngineRequest& r = s->request();
  const float* logits = row;
  if (adjusts_logits(s->sampling)) {
    scratch->resize(static_cast<size_t>(vocab_));
    adjust_logits(row, vocab_, s->sampling, s->history, scratch->data());
    logits = scratch->data();
  }
  DrawRules rules{r.banned_ids, {}, {}};
  bool early = s->produced < r.min_tokens;
  if (early) rules.also_banned = r.stop_ids;
  if (s->constraint != nullptr) {
    mask->assign(static_cast<size_t>((vocab_ + 31) / 32), 0);
    if (s->constraint->mask(*mask)) rules.mask = *mask;
  }
  const int32_t* guess = i < work.drafts.size() ? &work.drafts[i] : nullptr;
  const Distribution* drawn_from = i < work.drawn_from.size() ? &work.drawn_from[i] : nullptr;
  auto decide = [&] {
    return pick_from(logits, vocab_, position, s->sampling, rules, drawn_from, guess, options_.ratio_rule);
  };
  int32_t id = decide();
  if (id < 0 && early && s->constraint != nullptr) {
    // The output may only end here: what it must match goes before how long it should be.
    rules.also_banned = {};
    id = decide();
  }
  if (id >= 0) return id;
  bool finite = std::any_of(row, row + vocab_, [](float v) { return std::isfinite(v); });
  if (!finite) {
    *why = error(Code::kInvalidData, "the model gave no finite logit at position {}", position);
  } else if (!rules.mask.empty()) {
    *why = error(Code::kInvalidArgument, "what the output must match leaves no token after {} of them",
                 s->produced);
  } else {
    *why =
        error(Code::kInvalidArgument, "banned ids and biases leave no token after {} of them", s->produced);
  }
  return -1;
}

// Takes a decided token; true when the choice is over.
bool StepRunner::emit(Sequence* s, int32_t id, const float* row, Work* work) {
  RunOutcome* out = work->outcome;
  if (s->is_stop(id)) {
    out->finish = Finish::kStop;
    return true;
  }
  ++s->produced;
  out->tokens.push_back(event_of(row, id, s->request().top_logprobs));
  if (s->counts) s->history.push(id);
  if (s->constraint != nullptr) {
    if (!s->constraint->accept(id)) {
      out->finish = Finish::kError;
      out->status = error(Code::kInvalidData, "id {} was allowed by the mask and then refused", id);
      return true;
    }
    if (s->constraint->terminated()) {
      out->finish = Finish::kStop;
      return true;
    }
  }
  out->finish = Finish::kLength;
  return s->produced >= s->request().max_tokens;
}

// Draws row after row while the guess that the next row was fed with is what was drawn.
void StepRunner::verify(const ForwardResult<float>& logits, Work* work, std::vector<float>* scratch) {
  Sequence* s = work->s;
  SequenceState& state = *s->state;
  RunOutcome* out = work->outcome;
  bool prefill = work->run->prefill;
  int64_t base = prefill ? work->rows.end - 1 : work->rows.begin;
  size_t first = work->first_row + work->row_count - 1 - work->drafts.size();
  std::vector<uint32_t> mask;
  int64_t decided = 0;
  bool done = false;
  int32_t id = -1;
  for (size_t i = 0; i <= work->drafts.size() && !done; ++i) {
    const float* row = logits.row(first + i);
    id = pick(s, row, base + 1 + static_cast<int64_t>(i), *work, i, scratch, &mask, &out->status);
    if (id < 0) {
      out->finish = Finish::kError;
      out->result.failed = done = true;
      break;
    }
    ++decided;
    done = emit(s, id, row, work);
    out->result.failed = done && out->finish == Finish::kError;
    if (i == work->drafts.size() || work->drafts[i] != id) break;
  }
  out->verified = static_cast<int64_t>(work->drafts.size());
  out->accepted = std::max<int64_t>(0, decided - 1);
  out->result.new_tokens = decided;
  out->result.finished = s->over = done;
  if (!prefill) state.truncate(work->rows.begin + std::max<int64_t>(1, decided));
  if (!done) state.tokens.push_back(id);
}

void StepRunner::add_keys(Sequence* s, policy::RowResult* result) {
  if (!s->origin->publishes) return;
  while ((s->keys + 1) * block_tokens_ <= s->state->length) {
    s->last_key =
        request_block(s->last_key, s->request(), s->state->tokens, s->keys, static_cast<int>(block_tokens_));
    ++s->keys;
    result->new_keys.push_back(to_block_key(s->last_key));
  }
}

void StepRunner::conclude(const ForwardResult<float>& logits, Work* work, std::vector<float>* scratch) {
  Sequence* s = work->s;
  RunOutcome* out = work->outcome;
  if (s->scores_prompt()) {
    score_prompt(s, logits, work->first_row, static_cast<int64_t>(work->row_count));
  }
  if (work->run->yields) {
    out->yielded = true;
    if (work->run->prefill && s->produced == 0) out->prompt_logprobs = s->prompt_logprobs;
    verify(logits, work, scratch);
  }
  if (!out->result.failed) add_keys(s, &out->result);
  int64_t length = s->state->length;
  bool taken = true;
  auto check = [&](policy::SnapshotId id, int64_t boundary) {
    if (id == policy::kNoSnapshot) return;
    // A decode row may have begun past the boundary; then the step before took it, or nobody did.
    bool copied = boundary <= length && (work->run->prefill || boundary > work->rows.begin);
    taken = taken && copied;
  };
  check(work->run->snapshot, work->run->snapshot_boundary);
  check(work->run->cap_snapshot, work->run->cap_boundary);
  out->result.snapshot_taken = taken;
}

}  // namespace deepinfer
