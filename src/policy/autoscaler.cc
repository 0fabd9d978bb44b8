// Timers on a ratio, then steps with limits.
#include "policy/autoscaler.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::policy {

const char* name(ScaleReason reason) {
  switch (reason) {
    case ScaleReason::kSteady:
      return "steady";
    case ScaleReason::kNoSample:
      return "no sample";
    case ScaleReason::kStaleSample:
      return "stale sample";
    case ScaleReason::kWaitUp:
      return "wait up";
    case ScaleReason::kWaitDown:
      return "wait down";
    case ScaleReason::kUp:
      return "up";
    case ScaleReason::kDown:
      return "down";
    case ScaleReason::kAtLeast:
      return "at least";
    case ScaleReason::kAtMost:
      return "at most";
    case ScaleReason::kStarting:
      return "starting";
    case ScaleReason::kBelowFloor:
      return "below floor";
  }
  return "?";
}

namespace {

struct ApplyScaler {
  ScalerState* s;
  void operator()(const ScalerSample& e) const {
    if (!std::isfinite(e.signal) || e.signal < 0 || !e.warm) {
      ++s->samples_ignored;
      return;
    }
    s->has_sample = true;
    s->signal = e.signal;
    s->sampled_ns = e.now_ns;
    const double ratio = e.signal / s->config.target;
    if (ratio <= s->config.up_above) {
      s->above_since_ns = -1;
    } else if (s->above_since_ns < 0) {
      s->above_since_ns = e.now_ns;
    }
    if (ratio >= s->config.down_below) {
      s->below_since_ns = -1;
    } else if (s->below_since_ns < 0) {
      s->below_since_ns = e.now_ns;
    }
  }
  void operator()(const ScalerMembers& e) const {
    if (e.ready + e.pending != s->ready + s->pending) restart();  // somebody changed it: a new base
    if (e.pending > s->pending || s->pending == 0) s->pending_since_ns = e.now_ns;
    s->ready = e.ready;
    s->pending = e.pending;
  }
  void operator()(const ScalerChanged& e) const {
    const int64_t base = s->ready + s->pending;
    if (e.desired > base) {
      if (s->pending == 0) s->pending_since_ns = e.now_ns;
      s->pending += e.desired - base;
    } else {
      s->ready = std::max<int64_t>(0, e.desired - s->pending);
    }
    restart();
  }
  void restart() const { s->above_since_ns = s->below_since_ns = -1; }
};

int64_t floor_of(const ScalerConfig& c) {
  return c.least + c.spare;
}

}  // namespace

void apply(ScalerState* state, const ScalerEvent& event) {
  std::visit(ApplyScaler{state}, event);
}

ScaleDecision decide_scale(const ScalerState& s, int64_t now_ns) {
  const ScalerConfig& c = s.config;
  const bool overdue = s.pending > 0 && now_ns - s.pending_since_ns >= c.start_timeout_ns;
  const int64_t current = s.ready + (overdue ? 0 : s.pending);
  auto hold = [&](ScaleReason why) { return ScaleDecision{why, current, false}; };
  if (current < floor_of(c) && floor_of(c) <= c.most)
    return {ScaleReason::kBelowFloor, floor_of(c), !c.advisory};
  if (!s.has_sample) return hold(ScaleReason::kNoSample);
  if (now_ns - s.sampled_ns > c.stale_ns) return hold(ScaleReason::kStaleSample);
  const double wanted = std::ceil(static_cast<double>(std::max<int64_t>(1, s.ready)) * s.signal / c.target);
  if (s.above_since_ns >= 0) {
    if (now_ns - s.above_since_ns < c.up_after_ns) return hold(ScaleReason::kWaitUp);
    if (s.pending > 0 && !overdue) return hold(ScaleReason::kStarting);
    const double most = std::floor(static_cast<double>(current) * (1 + c.most_up));
    const int64_t step = std::max<int64_t>(current + 1, static_cast<int64_t>(std::min(wanted, most)));
    const int64_t desired = std::min(c.most, step);
    if (desired <= current) return hold(ScaleReason::kAtMost);
    return {ScaleReason::kUp, desired, !c.advisory};
  }
  if (s.below_since_ns >= 0) {
    if (now_ns - s.below_since_ns < c.down_after_ns) return hold(ScaleReason::kWaitDown);
    const int64_t step =
        std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(current) * c.most_down));
    const int64_t desired =
        std::max({floor_of(c), current - step, static_cast<int64_t>(std::min(wanted, 1e18))});
    if (desired >= current) return hold(ScaleReason::kAtLeast);
    return {ScaleReason::kDown, desired, !c.advisory};
  }
  return hold(ScaleReason::kSteady);
}

}  // namespace deepinfer::policy
