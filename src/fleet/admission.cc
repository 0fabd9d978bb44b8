// Tickets, lines and the learned price of fleet/admission.h; every judgement is policy/admission's.
#include "fleet/admission.h"

#include <algorithm>

namespace deepinfer {
namespace {

using policy::AdmitReason;
using policy::Quota;

// Per-minute quotas hold a minute's worth and start full; levels have no rate.
std::array<policy::QuotaLimit, policy::kQuotas> limits_of(const TenantQuota& q) {
  std::array<policy::QuotaLimit, policy::kQuotas> out{};
  auto set = [&](Quota which, int64_t size, bool rate) {
    const double n = static_cast<double>(size);
    out[static_cast<size_t>(which)] = {rate ? n / 60 : 0, n};
  };
  set(Quota::kRequests, q.requests_per_minute, true);
  set(Quota::kTokens, q.tokens_per_minute, true);
  set(Quota::kOutputTokens, q.output_tokens_per_minute, true);
  set(Quota::kConcurrent, q.concurrent, false);
  set(Quota::kKvTokens, q.kv_tokens, false);
  return out;
}

// A prompt shorter than this says more about the step it shared than about its own price.
constexpr int64_t kLeastSampleTokens = 16;
// The fastest prefill counts; an older record fades by so much with each sample, since machines change.
constexpr double kFade = 1.02;

}  // namespace

AdmissionControl::AdmissionControl(policy::AdmissionConfig limits) {
  state_.config = limits;
  state_.config.default_limits = {};
}

policy::TenantId AdmissionControl::tenant_of(const AdmissionRequest& r) {
  auto [it, fresh] = tenants_.try_emplace(r.tenant);
  Tenant& t = it->second;
  if (fresh) t.id = policy::TenantId{static_cast<uint32_t>(tenants_.size())};
  if (fresh || t.quota != r.quota) {
    t.quota = r.quota;
    policy::apply(&state_, policy::TenantLimits{t.id, r.now_ns, limits_of(r.quota)});
  }
  return t.id;
}

policy::AdmissionQuery AdmissionControl::query_of(const AdmissionRequest& r, policy::TenantId tenant) const {
  policy::AdmissionQuery q;
  q.tenant = tenant;
  q.now_ns = r.now_ns;
  q.deadline_ns = r.deadline_ns;
  q.prompt_tokens = r.prompt_tokens;
  q.max_new_tokens = r.most_tokens;
  q.tier = policy::tier_of(tiers_, r.prompt_tokens + r.most_tokens);
  // How much of the prompt is cached the engine finds out later; without a sample nothing is predicted.
  q.work_ns = ns_per_token_ * static_cast<double>(r.prompt_tokens);
  q.queued_ns = line_ns_[static_cast<size_t>(q.tier)];
  q.queued_requests = queued_;
  q.queued_tokens = queued_tokens_;
  q.engines = draining_ ? 0 : 1;
  return q;
}

// The line is full: whether others give way. Their owners are told after the lock is let go.
bool AdmissionControl::make_room(const policy::AdmissionQuery& q, const AdmissionRequest& r,
                                 const policy::AdmitDecision& d,
                                 std::vector<std::function<void()>>* displaced) {
  if (d.reason != AdmitReason::kQueueRequests && d.reason != AdmitReason::kQueueTokens) return false;
  std::vector<policy::LineEntry> waiting;
  for (const auto& [id, t] : tickets_) {
    if (!t.started)
      waiting.push_back({policy::SeqId{id}, t.tenant, t.weight, t.priority, t.work_ns, t.prompt_tokens});
  }
  const policy::LineEntry newcomer{policy::SeqId{0}, q.tenant,  r.weight,
                                   r.priority,       q.work_ns, r.prompt_tokens};
  const bool by_count = d.reason == AdmitReason::kQueueRequests;
  for (policy::SeqId s :
       policy::decide_displaced(waiting, newcomer, by_count ? 1 : 0, by_count ? 0 : d.need - d.limit)) {
    auto it = tickets_.find(static_cast<uint64_t>(s));
    ++displaced_;
    displaced->push_back(std::move(it->second.displaced));
    release(it, 0, r.now_ns);
  }
  return !displaced->empty();
}

AdmissionAnswer AdmissionControl::admit(AdmissionRequest r) {
  std::vector<std::function<void()>> displaced;
  AdmissionAnswer out;
  {
    std::lock_guard lock(mutex_);
    const policy::TenantId tenant = tenant_of(r);
    policy::AdmissionQuery q = query_of(r, tenant);
    out.decision = policy::decide_admit(state_, q);
    if (make_room(q, r, out.decision, &displaced)) {
      q = query_of(r, tenant);
      out.decision = policy::decide_admit(state_, q);
    }
    out.draining = draining_;
    if (out.decision.reason != AdmitReason::kAdmitted) {
      policy::apply(&state_, policy::Refused{tenant});
    } else {
      policy::apply(&state_, policy::Admitted{q});
      ++queued_;
      queued_tokens_ += r.prompt_tokens;
      line_ns_[static_cast<size_t>(q.tier)] += q.work_ns;
      out.ticket = ++last_;
      tickets_[last_] = {tenant,    r.weight,        r.priority,
                         q.tier,    r.prompt_tokens, r.most_tokens,
                         q.work_ns, false,           std::move(r.displaced)};
    }
  }
  for (auto& tell : displaced) {
    if (tell) tell();
  }
  return out;
}

void AdmissionControl::leave_line(const Ticket& t) {
  --queued_;
  queued_tokens_ -= t.prompt_tokens;
  double& line = line_ns_[static_cast<size_t>(t.tier)];
  line = queued_ == 0 ? 0 : std::max(0.0, line - t.work_ns);
}

void AdmissionControl::started(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(ticket);
  if (it == tickets_.end() || it->second.started) return;
  it->second.started = true;
  it->second.displaced = nullptr;
  leave_line(it->second);
}

void AdmissionControl::learn(int64_t uncached_tokens, int64_t prefill_ns) {
  if (uncached_tokens < kLeastSampleTokens || prefill_ns <= 0) return;
  const double sample = static_cast<double>(prefill_ns) / static_cast<double>(uncached_tokens);
  std::lock_guard lock(mutex_);
  ns_per_token_ = ns_per_token_ > 0 ? std::min(sample, ns_per_token_ * kFade) : sample;
}

void AdmissionControl::release(std::map<uint64_t, Ticket>::iterator it, int64_t output_tokens,
                               int64_t now_ns) {
  const Ticket& t = it->second;
  if (!t.started) leave_line(t);
  policy::apply(&state_, policy::AdmissionReleased{t.tenant, now_ns, t.prompt_tokens + t.most_tokens,
                                                   std::max<int64_t>(0, t.most_tokens - output_tokens)});
  tickets_.erase(it);
}

void AdmissionControl::finished(uint64_t ticket, int64_t output_tokens, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(ticket);
  if (it != tickets_.end()) release(it, output_tokens, now_ns);
}

void AdmissionControl::set_queue_limits(int64_t requests, int64_t tokens, double work_ns) {
  std::lock_guard lock(mutex_);
  state_.config.queue_requests = requests;
  state_.config.queue_tokens = tokens;
  state_.config.queue_limit_ns = work_ns;
}

void AdmissionControl::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}
bool AdmissionControl::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}
int64_t AdmissionControl::active() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(tickets_.size());
}
int64_t AdmissionControl::queued() const {
  std::lock_guard lock(mutex_);
  return queued_;
}
int64_t AdmissionControl::displaced() const {
  std::lock_guard lock(mutex_);
  return displaced_;
}
double AdmissionControl::queued_ns() const {
  std::lock_guard lock(mutex_);
  double all = 0;
  for (double ns : line_ns_) all += ns;
  return all;
}
double AdmissionControl::ns_per_token() const {
  std::lock_guard lock(mutex_);
  return ns_per_token_;
}

}  // namespace deepinfer
