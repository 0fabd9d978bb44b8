// The ring of recorded steps and the life of a rearrangement.
#include <algorithm>

#include "base/check.h"
#include "policy/eplb.h"

namespace deepinfer::policy {
namespace {

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

void reset_window(EplbState* s) {
  s->window.clear();
  s->recorded = 0;
}

struct ApplyEplb {
  EplbState* s;
  void operator()(const EplbStep& e) const {
    ++s->steps;
    if (e.load.empty()) return;
    const int64_t experts = s->config.shape.experts;
    DI_CHECK(static_cast<int64_t>(e.load.size()) == experts, "one load per expert");
    const int64_t row = s->recorded % s->config.window_steps;
    if (at((row + 1) * experts) > s->window.size()) s->window.resize(at((row + 1) * experts));
    std::copy(e.load.begin(), e.load.end(), s->window.begin() + row * experts);
    ++s->recorded;
  }
  void operator()(const EplbStarted& e) const {
    DI_CHECK(s->phase == EplbPhase::kIdle, "one rearrangement at a time");
    s->next_due = s->steps + s->config.interval_steps;
    if (e.decision.reason != EplbReason::kBetter) {
      ++s->kept;
      return;
    }
    s->phase = EplbPhase::kMoving;
    s->pending = e.decision.placement;
    ++s->pending_id;
    s->pending_since_ns = e.now_ns;
    s->ready_ranks = 0;
  }
  void operator()(const EplbRankReady& e) const {
    if (s->phase == EplbPhase::kMoving && e.id == s->pending_id) ++s->ready_ranks;
  }
  void operator()(const EplbSwapped& e) const {
    if (s->phase != EplbPhase::kMoving || e.id != s->pending_id) return;
    s->placement = s->pending;
    ++s->version;
    ++s->done;
    s->phase = EplbPhase::kIdle;
  }
  void operator()(const EplbAborted& e) const {
    if (s->phase != EplbPhase::kMoving || e.id != s->pending_id) return;
    ++s->aborted;
    s->phase = EplbPhase::kIdle;
  }
  void operator()(const EplbResized& e) const {
    if (s->phase == EplbPhase::kMoving) ++s->aborted;
    s->phase = EplbPhase::kIdle;
    s->config.shape = e.shape;
    reset_window(s);
    s->placement = decide_experts(e.shape, {e.shape.experts, {}}, {}, s->config.search).placement;
    ++s->version;
    s->next_due = s->steps + s->config.interval_steps;
  }
};

EplbConfig published(int ranks, int redundant, int64_t window, int64_t interval) {
  constexpr int kExperts = 384;
  EplbConfig c;
  c.shape = {kExperts, ranks, (kExperts + ranks * redundant + ranks - 1) / ranks, 1, 1};
  c.window_steps = window;
  c.interval_steps = interval;
  return c;
}

}  // namespace

EplbConfig prefill_eplb(int ranks) {
  return published(ranks, 4, 100, 1000);
}
EplbConfig decode_eplb(int ranks) {
  return published(ranks, 1, 1000, 10000);
}

EplbState make_eplb(const EplbConfig& config) {
  DI_CHECK(problem(config.shape).empty(), problem(config.shape));
  EplbState s;
  s.config = config;
  s.placement = decide_experts(config.shape, {config.shape.experts, {}}, {}, config.search).placement;
  s.next_due = config.interval_steps;
  return s;
}

EplbHistory history_of(const EplbState& s) {
  EplbHistory h;
  h.experts = s.config.shape.experts;
  const int64_t kept = std::min(s.recorded, s.config.window_steps);
  for (int64_t i = s.recorded - kept; i < s.recorded; ++i) {
    const auto row = s.window.begin() + (i % s.config.window_steps) * h.experts;
    h.load.insert(h.load.end(), row, row + h.experts);
  }
  return h;
}

void apply(EplbState* state, const EplbEvent& event) {
  std::visit(ApplyEplb{state}, event);
}

EplbAction decide_action(const EplbState& s, int64_t now_ns) {
  if (s.phase == EplbPhase::kMoving) {
    if (s.ready_ranks >= s.config.shape.ranks) return EplbAction::kSwap;
    return now_ns - s.pending_since_ns >= s.config.deadline_ns ? EplbAction::kAbort : EplbAction::kNone;
  }
  return s.steps >= s.next_due ? EplbAction::kRearrange : EplbAction::kNone;
}

bool weight_update_allowed(const EplbState& s) {
  return s.phase == EplbPhase::kIdle;
}

}  // namespace deepinfer::policy
