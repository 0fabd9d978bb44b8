// Speculation inside a step: whether to draft, one pass for all, whose drafts are verified, what is learned.
// Sampling decides everything that is said, so none of this can change an answer (but for the ratio rule).
// Source: serving specification 4, 12.5.
#include <algorithm>
#include <deque>

#include "engine/sequence_record.h"

namespace deepinfer {

// What a constraint leaves no choice about needs no model and no budget; the others share one pass of the
// draft stages if the policy says that it pays.
void StepRunner::guess(std::vector<Work>* works, StepOutcome* out) {
  bool has_stages = model_->config().drafts() > 0;
  std::vector<Work*> askers;
  std::vector<policy::BudgetRequest> requests;
  int64_t other_rows = out->prefill_rows;
  for (Work& work : *works) {
    if (work.run->prefill) continue;
    if (work.most_drafts > 0 && work.s->constraint != nullptr) {
      work.drafts = work.s->constraint->forced(static_cast<int>(work.most_drafts));
      other_rows += static_cast<int64_t>(work.drafts.size());
    }
    bool asks = has_stages && work.most_drafts > 0 && work.drafts.empty();
    requests.push_back({work.run->seq, asks ? static_cast<int>(work.most_drafts) : 0});
    if (asks) askers.push_back(&work);
  }
  if (askers.empty()) return;
  policy::BudgetDecision decision = policy::decide_drafts(speculation_, {other_rows, requests});
  policy::apply(&speculation_, policy::BudgetAdopted{decision});
  if (!decision.draft) return;
  std::rotate(askers.begin(), askers.begin() + decision.ask_first, askers.end());
  askers.resize(static_cast<size_t>(decision.ask));
  draft(askers, out);
  choose_lengths(askers, decision);
}

void StepRunner::draft(const std::vector<Work*>& askers, StepOutcome* out) {
  std::vector<DraftSpan<float>> spans;
  std::deque<DraftPick<float>> picks;
  for (Work* work : askers) {
    Sequence* s = work->s;
    picks.push_back([this, s, work](const float* logits, int64_t vocab, int64_t position) {
      DrawRules rules{s->request().banned_ids, {}, {}};
      if (!options_.ratio_rule) return std::max(draw(logits, vocab, position, s->sampling, rules), 0);
      work->drawn_from.push_back(distribution(logits, vocab, s->sampling, rules));
      const Distribution& d = work->drawn_from.back();
      return d.empty() ? 0 : draw_draft(d, s->sampling.seed, position);
    });
    spans.push_back({s->state.get(), s->state->tokens.back(), &picks.back()});
  }
  int64_t begin = options_.now_ns();
  std::vector<DraftResult<float>> results = model_->draft(spans);
  for (size_t i = 0; i < askers.size(); ++i) {
    askers[i]->drafts = std::move(results[i].tokens);
    if (options_.guesses != nullptr) own_guesses(askers[i]->s->state->tokens, &askers[i]->drafts);
    askers[i]->confidence = std::move(results[i].confidence_logits);
    askers[i]->outcome->drafted = static_cast<int64_t>(askers[i]->drafts.size());
  }
  int64_t end = options_.now_ns();
  out->draft_ns = end - begin;
  span("draft", raw(out->step), begin, end);
}

// The caller may say other tokens, not more or fewer of them, and none that the model does not have.
void StepRunner::own_guesses(const std::vector<int32_t>& known, std::vector<int32_t>* drafts) {
  std::vector<int32_t> mine = *drafts;
  options_.guesses(known, &mine);
  for (size_t i = 0; i < drafts->size() && i < mine.size(); ++i)
    if (model_->valid_token(mine[i])) (*drafts)[i] = mine[i];
}

// The total was fixed before these drafts existed; who gets how much of it looks at this round's confidences.
void StepRunner::choose_lengths(const std::vector<Work*>& askers, const policy::BudgetDecision& decision) {
  std::vector<std::vector<double>> alive;
  std::vector<policy::DraftRow> rows;
  for (Work* work : askers) {
    if (static_cast<int64_t>(work->drafts.size()) > work->most_drafts)
      work->drafts.resize(static_cast<size_t>(work->most_drafts));
    cut_drafts(work->s, &work->drafts);
    alive.push_back(policy::survivals_of(speculation_, work->confidence));
  }
  for (size_t i = 0; i < askers.size(); ++i)
    rows.push_back({alive[i], static_cast<int>(askers[i]->drafts.size())});
  std::vector<int> lengths;
  if (decision.reason == policy::BudgetReason::kFixedDepth) {
    for (const policy::DraftRow& r : rows) lengths.push_back(std::min(r.cap, speculation_.config.fixed));
  } else {
    lengths = policy::choose_lengths(rows, decision.total, decision.dead_below);
  }
  for (size_t i = 0; i < askers.size(); ++i) askers[i]->drafts.resize(static_cast<size_t>(lengths[i]));
}

void StepRunner::place_decode(Work* work, StepOutcome* out) {
  SequenceState& state = *work->s->state;
  if (work->confidence.empty())
    cut_drafts(work->s, &work->drafts);  // forced ones; the others were cut before
  state.tokens.insert(state.tokens.end(), work->drafts.begin(), work->drafts.end());
  int64_t begin = state.length, end = begin + 1 + static_cast<int64_t>(work->drafts.size());
  out->decode_rows += end - begin;
  work->rows = {&state, begin, end, begin};
  capture(*work->run, begin, end, &work->rows);
}

// No row for what cannot be accepted: nothing follows a stop id, nor what the constraint forbids.
void StepRunner::cut_drafts(Sequence* s, std::vector<int32_t>* drafts) {
  size_t keep = 0;
  int taken = 0;
  for (; keep < drafts->size(); ++keep) {
    int32_t id = (*drafts)[keep];
    if (s->is_stop(id)) break;
    if (s->constraint == nullptr) continue;
    if (!s->constraint->accept(id)) break;
    ++taken;
  }
  if (taken > 0) s->constraint->rollback(taken);
  drafts->resize(keep);
}

// What the step says about the curve, the confidences and the sequences.
void StepRunner::judge(const std::vector<Work>& works, int64_t experts, StepOutcome* out) {
  policy::SpeculationStep step;
  step.rows = out->decode_rows;
  step.experts = static_cast<double>(experts);
  step.verify_ns = static_cast<double>(out->forward_ns + out->sample_ns);
  step.draft_ns = static_cast<double>(out->draft_ns);
  step.excluded = out->prefill_rows > 0 || out->irregular || out->decode_rows == 0;
  policy::DraftsJudged judged;
  for (const Work& w : works) {
    if (w.confidence.empty()) continue;
    ++step.drafting;
    judged.requests.push_back({w.run->seq, w.s->window_from, w.confidence,
                               static_cast<int>(w.outcome->verified), static_cast<int>(w.outcome->accepted)});
  }
  policy::apply(&speculation_, step);
  if (!judged.requests.empty()) policy::apply(&speculation_, judged);
  const policy::SpeculationCounters& c = speculation_.counters;
  SpeculationStats& s = out->speculation;
  s = {speculation_.on, speculation_.drifting, c.draft_passes,
       c.switched_off,  c.switched_on,         c.trials,
       c.drift_alarms,  c.origin_alarms,       {},
       c.budgets,       c.budget_drafts,       c.last_budget};
  for (const policy::PositionCounters& p : c.position)
    s.position.push_back({p.verified, p.accepted, p.predicted});
}

}  // namespace deepinfer
