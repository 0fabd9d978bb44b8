// Token buckets and line limits of fleet/admission.h.
#include "fleet/admission.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {
namespace {
constexpr int64_t kSecond = 1'000'000'000;
constexpr double kMinuteNs = 60e9;
}  // namespace

const char* name(AdmissionReason reason) {
  switch (reason) {
    case AdmissionReason::kAdmitted:
      return "admitted";
    case AdmissionReason::kTenantRequests:
      return "tenant_requests_per_minute";
    case AdmissionReason::kTenantTokens:
      return "tenant_tokens_per_minute";
    case AdmissionReason::kTenantConcurrency:
      return "tenant_concurrency";
    case AdmissionReason::kTooLargeForQuota:
      return "larger_than_tenant_quota";
    case AdmissionReason::kQueueRequests:
      return "queue_requests";
    case AdmissionReason::kQueueTokens:
      return "queue_tokens";
    case AdmissionReason::kDraining:
      return "draining";
  }
  return "unknown";
}

// A bucket holds a minute's worth and starts full.
void AdmissionControl::refill(Bucket* b, int64_t per_minute, int64_t now_ns) {
  const double most = static_cast<double>(per_minute);
  if (b->filled_ns == 0) {
    b->level = most;
  } else {
    b->level = std::min(most, b->level + most * static_cast<double>(now_ns - b->filled_ns) / kMinuteNs);
  }
  b->filled_ns = now_ns;
}

AdmissionControl::Decision AdmissionControl::admit(const std::string& name, const TenantQuota& q,
                                                   int64_t prompt, int64_t most, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  auto refuse = [](AdmissionReason why, double wait_ns) {
    return Decision{why, std::max<int64_t>(kSecond, static_cast<int64_t>(wait_ns)), 0};
  };
  if (draining_) return refuse(AdmissionReason::kDraining, 5 * kSecond);
  Tenant& t = tenants_[name];
  const double tokens = static_cast<double>(prompt) + static_cast<double>(most);
  if (q.requests_per_minute > 0) refill(&t.requests, q.requests_per_minute, now_ns);
  if (q.tokens_per_minute > 0) refill(&t.tokens, q.tokens_per_minute, now_ns);
  t.token_capacity = q.tokens_per_minute;
  if (q.concurrent > 0 && t.concurrent >= q.concurrent)
    return refuse(AdmissionReason::kTenantConcurrency, kSecond);
  if (q.requests_per_minute > 0 && t.requests.level < 1)
    return refuse(AdmissionReason::kTenantRequests,
                  (1 - t.requests.level) * kMinuteNs / static_cast<double>(q.requests_per_minute));
  if (q.tokens_per_minute > 0 && tokens > static_cast<double>(q.tokens_per_minute))
    return refuse(AdmissionReason::kTooLargeForQuota, 0);
  if (q.tokens_per_minute > 0 && t.tokens.level < tokens)
    return refuse(AdmissionReason::kTenantTokens,
                  (tokens - t.tokens.level) * kMinuteNs / static_cast<double>(q.tokens_per_minute));
  if (limits_.requests > 0 && queued_ >= limits_.requests)
    return refuse(AdmissionReason::kQueueRequests, 2 * kSecond);
  // A prompt longer than the limit alone may still wait when nobody else does.
  if (limits_.tokens > 0 && queued_ > 0 && queued_tokens_ + prompt > limits_.tokens)
    return refuse(AdmissionReason::kQueueTokens, 2 * kSecond);
  if (q.requests_per_minute > 0) t.requests.level -= 1;
  if (q.tokens_per_minute > 0) t.tokens.level -= tokens;
  ++t.concurrent;
  ++queued_;
  queued_tokens_ += prompt;
  tickets_[++last_] = {name, prompt, most, false};
  return {AdmissionReason::kAdmitted, 0, last_};
}

void AdmissionControl::started(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(ticket);
  if (it == tickets_.end() || it->second.started) return;
  it->second.started = true;
  --queued_;
  queued_tokens_ -= it->second.prompt_tokens;
}

void AdmissionControl::finished(uint64_t ticket, int64_t output_tokens) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return;
  const Ticket& k = it->second;
  if (!k.started) {
    --queued_;
    queued_tokens_ -= k.prompt_tokens;
  }
  Tenant& t = tenants_[k.tenant];
  --t.concurrent;
  if (t.token_capacity > 0) {
    t.tokens.level =
        std::min(static_cast<double>(t.token_capacity),
                 t.tokens.level + static_cast<double>(std::max<int64_t>(0, k.most_tokens - output_tokens)));
  }
  tickets_.erase(it);
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

}  // namespace deepinfer
