// Buckets that refill by the time that is given, and the checks in order of their price.
#include "policy/admission.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace deepinfer::policy {

const char* name(AdmitReason reason) {
  switch (reason) {
    case AdmitReason::kAdmitted:
      return "admitted";
    case AdmitReason::kTooLong:
      return "too long";
    case AdmitReason::kQuota:
      return "quota";
    case AdmitReason::kQueueFull:
      return "queue full";
    case AdmitReason::kQueueRequests:
      return "queue requests";
    case AdmitReason::kQueueTokens:
      return "queue tokens";
    case AdmitReason::kDeadline:
      return "deadline";
    case AdmitReason::kNoDecodeRoom:
      return "no decode room";
    case AdmitReason::kNoEngines:
      return "no engines";
  }
  return "?";
}

const char* name(Quota quota) {
  constexpr std::array<const char*, kQuotas> kNames = {
      "requests", "uncached time", "output tokens", "grammar time", "cache tokens", "tokens", "concurrency"};
  return kNames[static_cast<size_t>(quota)];
}

namespace {

double level(const TenantBook& t, size_t q, int64_t now_ns) {
  const Bucket& b = t.buckets[q];
  const double refill =
      t.limits[q].per_second * static_cast<double>(std::max<int64_t>(0, now_ns - b.at_ns)) * 1e-9;
  return std::min(t.limits[q].size, b.left + refill);
}

std::array<double, kQuotas> demand(const AdmissionQuery& q) {
  return {1,
          q.work_ns,
          static_cast<double>(q.max_new_tokens),
          q.grammar_ms,
          static_cast<double>(q.prompt_tokens + q.max_new_tokens),
          static_cast<double>(q.prompt_tokens + q.max_new_tokens),
          1};
}

void set_limits(TenantBook* t, const std::array<QuotaLimit, kQuotas>& limits, int64_t now_ns, bool fresh) {
  for (size_t q = 0; q < kQuotas; ++q) {
    const double used = fresh ? 0 : t->limits[q].size - level(*t, q, now_ns);
    t->limits[q] = limits[q];
    t->buckets[q] = {std::max(0.0, limits[q].size - used), now_ns};
  }
}

TenantBook fresh_book(const AdmissionConfig& c, int64_t now_ns) {
  TenantBook t;
  set_limits(&t, c.default_limits, now_ns, true);
  return t;
}

struct ApplyAdmission {
  AdmissionState* s;
  TenantBook& book(TenantId id, int64_t now_ns) const {
    auto it = s->tenants.find(id);
    if (it == s->tenants.end()) it = s->tenants.emplace(id, fresh_book(s->config, now_ns)).first;
    return it->second;
  }
  void operator()(const TenantLimits& e) const {
    const bool fresh = !s->tenants.contains(e.tenant);
    set_limits(&book(e.tenant, e.now_ns), e.limits, e.now_ns, fresh);
  }
  void operator()(const Admitted& e) const {
    TenantBook& t = book(e.query.tenant, e.query.now_ns);
    ++t.accepted;
    const auto wanted = demand(e.query);
    for (size_t q = 0; q < kQuotas; ++q) {
      if (t.limits[q].size > 0) t.buckets[q] = {level(t, q, e.query.now_ns) - wanted[q], e.query.now_ns};
    }
  }
  void operator()(const Refused& e) const { ++book(e.tenant, 0).refused; }
  void operator()(const AdmissionReleased& e) const {
    TenantBook& t = book(e.tenant, e.now_ns);
    auto give = [&](Quota which, int64_t amount) {
      const size_t q = static_cast<size_t>(which);
      if (t.limits[q].size <= 0) return;
      t.buckets[q] = {std::min(t.limits[q].size, level(t, q, e.now_ns) + static_cast<double>(amount)),
                      e.now_ns};
    };
    give(Quota::kKvTokens, e.kv_tokens);
    give(Quota::kOutputTokens, e.unused_output_tokens);
    give(Quota::kTokens, e.unused_output_tokens);
    give(Quota::kConcurrent, 1);
  }
};

// The first bucket that cannot give what is asked. A full bucket lets anything through, so that no single
// request is for ever too large for its tenant; the debt is paid by waiting.
bool over_quota(const AdmissionState& s, const AdmissionQuery& q, AdmitDecision* out) {
  const auto it = s.tenants.find(q.tenant);
  TenantBook unknown;
  if (it == s.tenants.end()) unknown = fresh_book(s.config, q.now_ns);
  const TenantBook& book = it != s.tenants.end() ? it->second : unknown;
  const auto wanted = demand(q);
  for (size_t i = 0; i < kQuotas; ++i) {
    const QuotaLimit& limit = book.limits[i];
    if (limit.size <= 0) continue;
    const double left = level(book, i, q.now_ns), needed = std::min(wanted[i], limit.size);
    if (left >= needed - 1e-9) continue;
    out->reason = AdmitReason::kQuota;
    out->quota = static_cast<Quota>(i);
    constexpr double kUnknown = 1e9;  // a level has no rate: a second is as good a guess as any
    out->retry_after_ns = static_cast<int64_t>(
        limit.per_second > 0 ? std::min(3.6e12, std::ceil((needed - left) / limit.per_second * 1e9))
                             : kUnknown);
    return true;
  }
  return false;
}

}  // namespace

void apply(AdmissionState* state, const AdmissionEvent& event) {
  std::visit(ApplyAdmission{state}, event);
}

AdmitDecision decide_admit(const AdmissionState& s, const AdmissionQuery& q) {
  AdmitDecision out;
  const int64_t total = q.prompt_tokens + q.max_new_tokens;
  if (s.config.context_tokens > 0 && total > s.config.context_tokens) {
    out.reason = AdmitReason::kTooLong;
    out.need = total;
    out.limit = s.config.context_tokens;
    return out;
  }
  if (q.engines <= 0) {
    out.reason = AdmitReason::kNoEngines;
    out.retry_after_ns = s.config.decode_wait_ns;
    return out;
  }
  if (over_quota(s, q, &out)) return out;
  const double wait = q.queued_ns / static_cast<double>(q.engines);
  out.predicted_ttft_ns = wait + q.work_ns + q.fetch_ns;
  auto refuse = [&](AdmitReason why, double after_ns) {
    out.reason = why;
    out.retry_after_ns = static_cast<int64_t>(std::max(1e6, std::min(3.6e12, after_ns)));
  };
  constexpr double kSoon = 1e9;  // a place comes free when one ends; nobody knows when
  if (s.config.queue_requests > 0 && q.queued_requests >= s.config.queue_requests) {
    out.need = q.queued_requests + 1;
    out.limit = s.config.queue_requests;
    refuse(AdmitReason::kQueueRequests, std::max(kSoon, wait));
  } else if (s.config.queue_tokens > 0 && q.queued_requests > 0 &&
             q.queued_tokens + q.prompt_tokens > s.config.queue_tokens) {
    // Alone, a prompt longer than the limit may wait.
    out.need = q.queued_tokens + q.prompt_tokens;
    out.limit = s.config.queue_tokens;
    refuse(AdmitReason::kQueueTokens, std::max(kSoon, wait));
  } else if (wait > s.config.queue_limit_ns) {
    refuse(AdmitReason::kQueueFull, wait - s.config.queue_limit_ns);
  } else if (q.deadline_ns > 0 &&
             static_cast<double>(q.now_ns) + out.predicted_ttft_ns > static_cast<double>(q.deadline_ns)) {
    refuse(AdmitReason::kDeadline, wait);
  } else if (q.decode_wait_ns > static_cast<double>(s.config.decode_wait_ns)) {
    refuse(AdmitReason::kNoDecodeRoom, q.decode_wait_ns - static_cast<double>(s.config.decode_wait_ns));
  }
  return out;
}

std::vector<SeqId> decide_shed(std::span<const ShedCandidate> candidates, double excess_ns) {
  std::vector<const ShedCandidate*> order;
  for (const ShedCandidate& c : candidates) {
    if (!c.streamed) order.push_back(&c);
  }
  std::stable_sort(order.begin(), order.end(), [](const ShedCandidate* a, const ShedCandidate* b) {
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->over_quota != b->over_quota) return a->over_quota;
    return a->work_ns > b->work_ns;
  });
  std::vector<SeqId> out;
  for (const ShedCandidate* c : order) {
    if (excess_ns <= 0) break;
    out.push_back(c->seq);
    excess_ns -= c->work_ns;
  }
  return out;
}

std::vector<SeqId> decide_displaced(std::span<const LineEntry> waiting, const LineEntry& newcomer,
                                    int64_t requests, int64_t tokens) {
  struct Share {
    int64_t held = 0;
    double weight = 1;
  };
  std::map<TenantId, Share> shares;
  auto count = [&](const LineEntry& e) {
    Share& s = shares[e.tenant];
    ++s.held;
    s.weight = e.weight;
  };
  for (const LineEntry& e : waiting) count(e);
  count(newcomer);
  double weights = 0;
  for (const auto& [tenant, s] : shares) weights += s.weight;
  double all = static_cast<double>(waiting.size()) + 1;
  auto over = [&](TenantId t) {
    const Share& s = shares.at(t);
    return static_cast<double>(s.held) * weights > all * s.weight * (1 + 1e-9);
  };
  std::vector<const LineEntry*> left;
  for (const LineEntry& e : waiting) left.push_back(&e);
  std::vector<SeqId> out;
  while (requests > 0 || tokens > 0) {
    const bool newcomer_over = over(newcomer.tenant);
    auto worst = left.end();
    for (auto it = left.begin(); it != left.end(); ++it) {
      const LineEntry& e = **it;
      const bool gives_way = e.priority < newcomer.priority ||
                             (e.priority == newcomer.priority && over(e.tenant) && !newcomer_over);
      if (!gives_way) continue;
      auto rank = [&](const LineEntry& x) { return std::tuple(-x.priority, over(x.tenant), x.work_ns); };
      if (worst == left.end() || rank(e) > rank(**worst)) worst = it;
    }
    if (worst == left.end()) return {};
    out.push_back((*worst)->seq);
    --requests;
    tokens -= (*worst)->tokens;
    --shares.at((*worst)->tenant).held;
    all -= 1;
    left.erase(worst);
  }
  return out;
}

}  // namespace deepinfer::policy
