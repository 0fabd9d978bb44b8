// Lines, quotas and the pushing variants.
#include "policy/prefill_balancer.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::policy {

const char* name(PullReason reason) {
  switch (reason) {
    case PullReason::kPulled:
      return "pulled";
    case PullReason::kNothingWaits:
      return "nothing waits";
    case PullReason::kQuota:
      return "quota";
    case PullReason::kClosed:
      return "closed";
    case PullReason::kReadsBusy:
      return "reads busy";
  }
  return "?";
}

PrefillBalancerState make_prefill_balancer(const PrefillConfig& config, int engines) {
  PrefillBalancerState s;
  s.config = config;
  s.engines.resize(static_cast<size_t>(engines));
  return s;
}

namespace {

size_t index(int i) {
  return static_cast<size_t>(i);
}

struct ApplyPrefill {
  PrefillBalancerState* s;

  void operator()(const PrefillArrived& e) const {
    if (s->waiting.size() <= e.handle) s->waiting.resize(e.handle + size_t{1});
    PrefillWaiting& w = s->waiting[e.handle];
    DI_CHECK(w.tier < 0, "a handle is one request's at a time");
    w.seq = e.seq;
    w.tier = tier_of(s->config.tiers, e.total_tokens);
    w.arrived_ns = e.now_ns;
    w.work_ns = e.work_ns;
    QueueKey key{-int64_t{e.priority}, 0, ++s->arrivals, e.handle};
    w.key = push(&s->queues[index(w.tier)], e.tenant, e.weight, e.work_ns, key);
    s->queued_ns[index(w.tier)] += e.work_ns;
  }
  PrefillWaiting leave(uint32_t handle, bool served) const {
    PrefillWaiting& w = s->waiting[handle];
    DI_CHECK(w.tier >= 0, "only a waiting request leaves its line");
    take_out(&s->queues[index(w.tier)], w.key, served);
    double& queued = s->queued_ns[index(w.tier)];
    queued = s->queues[index(w.tier)].waiting.empty() ? 0 : std::max(0.0, queued - w.work_ns);
    PrefillWaiting left = w;
    w.tier = -1;
    return left;
  }
  void operator()(const PrefillPulled& e) const {
    const PrefillWaiting w = leave(e.handle, true);
    PrefillEngine& engine = s->engines[index(e.engine)];
    engine.used_ns[index(w.tier)] += w.work_ns;
    engine.total_ns += w.work_ns;
    ++engine.requests;
  }
  void operator()(const PrefillRan& e) const {
    PrefillEngine& engine = s->engines[index(e.engine)];
    double& used = engine.used_ns[index(e.tier)];
    // Predictions are sums of parts in another order; what is left below a nanosecond is nothing.
    used = used - e.work_ns < 1 ? 0 : used - e.work_ns;
    engine.requests -= e.finished;
    engine.total_ns = 0;
    for (double u : engine.used_ns) engine.total_ns += u;
  }
  void operator()(const PrefillCancelled& e) const { leave(e.handle, false); }
  void operator()(const PrefillEngineReport& e) const {
    s->engines[index(e.engine)].read_queue_ns = e.read_queue_ns;
    s->engines[index(e.engine)].open = e.open;
  }
};

bool reads_busy(const PrefillBalancerState& s, int engine) {
  if (s.engines[index(engine)].read_queue_ns <= s.config.read_queue_ns) return false;
  return std::any_of(s.engines.begin(), s.engines.end(), [&](const PrefillEngine& e) {
    return e.open && e.read_queue_ns <= s.config.read_queue_ns &&
           (s.config.most_outstanding_ns <= 0 || e.total_ns < s.config.most_outstanding_ns);
  });
}

}  // namespace

void apply(PrefillBalancerState* state, const PrefillEvent& event) {
  std::visit(ApplyPrefill{state}, event);
}

PullDecision decide_pull(const PrefillBalancerState& s, int engine, int64_t now_ns) {
  const PrefillEngine& e = s.engines[index(engine)];
  PullDecision out;
  if (!e.open) {
    out.reason = PullReason::kClosed;
    return out;
  }
  std::array<TierLoad, kTiers> loads;
  bool any = false;
  for (size_t k = 0; k < kTiers; ++k) {
    const FairQueue& q = s.queues[k];
    loads[k].used_ns = e.used_ns[k];
    loads[k].waiting = !q.waiting.empty();
    if (!loads[k].waiting) continue;
    any = true;
    const QueueKey& head = *q.waiting.begin();
    loads[k].head_wait_ns = now_ns - s.waiting[head.slot].arrived_ns;
    loads[k].head_arrival = head.arrival;
  }
  if (!any) return out;
  const TierOrder order = decide_tier_order(s.config.tiers, loads);
  if (order.count == 0 || (s.config.most_outstanding_ns > 0 && e.total_ns >= s.config.most_outstanding_ns)) {
    out.reason = PullReason::kQuota;
    return out;
  }
  if (reads_busy(s, engine)) {
    out.reason = PullReason::kReadsBusy;
    return out;
  }
  out.reason = PullReason::kPulled;
  out.tier = order.tiers[0];
  out.handle = s.queues[index(out.tier)].waiting.begin()->slot;
  return out;
}

int decide_push(const PrefillBalancerState& s, std::span<const PushOffer> offers) {
  DI_CHECK(offers.size() == s.engines.size(), "one offer per engine");
  int best = -1;
  double best_score = 0, best_load = 0;
  for (size_t i = 0; i < s.engines.size(); ++i) {
    if (!s.engines[i].open) continue;
    const double load = s.engines[i].total_ns / s.config.ranks;
    double score = load;
    if (s.config.rule == PrefillRule::kAffinity) score = load + offers[i].work_ns;
    if (s.config.rule == PrefillRule::kAffinityOnly) score = -static_cast<double>(offers[i].hit_tokens);
    if (best < 0 || score < best_score || (score == best_score && load < best_load)) {
      best = static_cast<int>(i);
      best_score = score;
      best_load = load;
    }
  }
  return best;
}

double queued_ns(const PrefillBalancerState& state) {
  double sum = 0;
  for (double q : state.queued_ns) sum += q;
  return sum;
}

}  // namespace deepinfer::policy
