// Deficit order of the tiers and fair tags inside them.
#include "policy/tiers.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::policy {

int tier_of(const TierConfig& config, int64_t total_tokens) {
  int tier = 0;
  while (tier < kTiers - 1 && total_tokens >= config.lower_bound_tokens[static_cast<size_t>(tier)]) ++tier;
  return tier;
}

QueueKey push(FairQueue* queue, TenantId tenant, double weight, double work_ns, QueueKey key) {
  DI_CHECK(weight > 0, "a tenant's weight is positive");
  double& last = queue->finish[tenant];
  last = std::max(queue->virtual_ns, last) + work_ns / weight;
  key.finish = last;
  queue->waiting.insert(key);
  return key;
}

void take_out(FairQueue* queue, const QueueKey& key, bool served) {
  queue->waiting.erase(key);
  if (served) queue->virtual_ns = std::max(queue->virtual_ns, key.finish);
  if (queue->waiting.empty()) {
    // Nobody is behind anybody any more; this also bounds the memory per tenant.
    queue->finish.clear();
    queue->virtual_ns = 0;
  }
}

TierOrder decide_tier_order(const TierConfig& config, const std::array<TierLoad, kTiers>& loads) {
  double lent_to = 0;
  for (size_t k = 0; k < kTiers; ++k) {
    if (loads[k].waiting || loads[k].used_ns > 0) lent_to += config.shares[k];
  }
  TierOrder out;
  std::array<double, kTiers> claim{};
  for (size_t k = 0; k < kTiers; ++k) {
    const TierLoad& load = loads[k];
    if (lent_to <= 0 || !(load.waiting || load.used_ns > 0)) continue;
    out.quota_ns[k] = config.quota_ns * config.shares[k] / lent_to;
    bool may = load.waiting && (load.used_ns < out.quota_ns[k] || load.used_ns <= 0);
    if (!may) continue;
    double unused = out.quota_ns[k] > 0 ? std::max(0.0, 1 - load.used_ns / out.quota_ns[k]) : 0;
    double age = config.age_ns[k] > 0
                     ? static_cast<double>(load.head_wait_ns) / static_cast<double>(config.age_ns[k])
                     : 0;
    claim[k] = unused * (1 + age);
    out.tiers[static_cast<size_t>(out.count++)] = static_cast<int>(k);
  }
  std::sort(out.tiers.begin(), out.tiers.begin() + out.count, [&](int x, int y) {
    size_t a = static_cast<size_t>(x), b = static_cast<size_t>(y);
    if (claim[a] != claim[b]) return claim[a] > claim[b];
    if (loads[a].head_arrival != loads[b].head_arrival) return loads[a].head_arrival < loads[b].head_arrival;
    return x < y;
  });
  return out;
}

}  // namespace deepinfer::policy
