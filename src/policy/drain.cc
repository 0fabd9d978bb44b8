// Phases advance when their condition holds, after every event.
#include "policy/drain.h"

#include "base/check.h"

namespace deepinfer::policy {

const char* name(DrainPhase phase) {
  switch (phase) {
    case DrainPhase::kServing:
      return "serving";
    case DrainPhase::kGrace:
      return "grace";
    case DrainPhase::kForwarding:
      return "forwarding";
    case DrainPhase::kQuiescing:
      return "quiescing";
    case DrainPhase::kGone:
      return "gone";
    case DrainPhase::kAborted:
      return "aborted";
  }
  return "?";
}

namespace {

struct ApplyDrain {
  DrainState* s;
  void operator()(const DrainAsked& e) const {
    if (s->phase == DrainPhase::kServing) {
      s->phase = DrainPhase::kGrace;
      s->deadline_ns = e.now_ns + s->grace_ns;
    } else if (s->phase != DrainPhase::kGone && s->phase != DrainPhase::kAborted) {
      s->phase = DrainPhase::kAborted;
      s->aborted = s->queued + s->running;
    }
  }
  void operator()(const DrainTick& e) const {
    if (s->phase == DrainPhase::kGrace && e.now_ns >= s->deadline_ns) s->phase = DrainPhase::kForwarding;
  }
  void operator()(const DrainRequestRouted&) const {
    ++s->queued;
    // It raced in while peers were being waited for: it has to be handed on first.
    if (s->phase == DrainPhase::kQuiescing) s->phase = DrainPhase::kForwarding;
  }
  void operator()(const DrainRequestStarted&) const {
    DI_CHECK(s->queued > 0, "only a queued request starts");
    --s->queued;
    ++s->running;
  }
  void operator()(const DrainRequestEnded&) const {
    DI_CHECK(s->running > 0, "only a running request ends");
    --s->running;
  }
  void operator()(const DrainRequestForwarded& e) const {
    int64_t& count = e.was_queued ? s->queued : s->running;
    DI_CHECK(count > 0, "a forwarded request was here");
    --count;
    ++s->forwarded;
  }
  void operator()(const DrainTransferBegan&) const { ++s->transfers; }
  void operator()(const DrainTransferEnded&) const {
    DI_CHECK(s->transfers > 0, "a transfer ends once");
    --s->transfers;
  }
};

}  // namespace

void apply(DrainState* s, const DrainEvent& event) {
  std::visit(ApplyDrain{s}, event);
  const bool idle = s->queued == 0 && s->running == 0;
  if ((s->phase == DrainPhase::kGrace || s->phase == DrainPhase::kForwarding) && idle) {
    s->phase = DrainPhase::kQuiescing;
  }
  if (s->phase == DrainPhase::kQuiescing && s->transfers == 0) s->phase = DrainPhase::kGone;
}

DrainDecision decide_drain(const DrainState& s) {
  DrainDecision d;
  if (s.phase == DrainPhase::kServing) return d;
  d.registered = false;
  // A prefill engine hands its queue back at once: others start it sooner. A decode engine keeps what was
  // routed to it, because its cache is on the way here.
  const bool forwarding = s.phase == DrainPhase::kForwarding;
  d.start_queued = s.phase == DrainPhase::kGrace && s.role == EngineRole::kDecode;
  if (forwarding || (s.phase == DrainPhase::kGrace && s.role == EngineRole::kPrefill))
    d.forward_queued = s.queued;
  if (forwarding) d.forward_running = s.running;
  d.exit = s.phase == DrainPhase::kGone || s.phase == DrainPhase::kAborted;
  d.abort = s.phase == DrainPhase::kAborted;
  return d;
}

}  // namespace deepinfer::policy
