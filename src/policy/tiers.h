// Queues by length: short work and long work wait in different lines, each with its share of the predicted
// work an engine may have outstanding, and inside a line tenants share by weight. Does not know blocks or
// steps. Source: serving specification 1.6, 10.4. Threads: plain data, one owner.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>

#include "policy/ids.h"

namespace deepinfer::policy {

inline constexpr int kTiers = 4;

struct TierConfig {
  std::array<int64_t, kTiers - 1> lower_bound_tokens = {16384, 65536, 262144};  // of tiers 1, 2, 3; inclusive
  std::array<double, kTiers> shares = {0.4, 0.3, 0.2, 0.1};
  // A waiting head doubles its claim after this long.
  std::array<int64_t, kTiers> age_ns = {2'000'000'000, 10'000'000'000, 30'000'000'000, 60'000'000'000};
  double quota_ns = 1.6e9;  // predicted work outstanding over all tiers: 4 steps of the batch target
};
int tier_of(const TierConfig& config, int64_t total_tokens);

// Where one waiting request stands in its tier: priority, then the tenant's virtual finish, then arrival.
struct QueueKey {
  int64_t minus_priority = 0;
  double finish = 0;
  uint64_t arrival = 0;
  uint32_t slot = 0;  // the caller's handle
  auto operator<=>(const QueueKey&) const = default;
};

// Self-clocked weighted fair queueing over predicted work.
struct FairQueue {
  std::set<QueueKey> waiting;
  std::map<TenantId, double> finish;  // virtual finish of each tenant's last request
  double virtual_ns = 0;
};
// Puts a request into the line and returns its key. REQUIRES weight > 0.
QueueKey push(FairQueue* queue, TenantId tenant, double weight, double work_ns, QueueKey key);
// Takes it out: `served` when it goes to run (the virtual clock moves), not when it was cancelled.
void take_out(FairQueue* queue, const QueueKey& key, bool served);

struct TierLoad {
  double used_ns = 0;  // predicted work pulled and not yet executed
  bool waiting = false;
  int64_t head_wait_ns = 0;
  uint64_t head_arrival = 0;
};
struct TierOrder {
  int count = 0;                    // tiers that may be pulled from now
  std::array<int, kTiers> tiers{};  // best first
  std::array<double, kTiers> quota_ns{};
};
// Largest unused part of the quota first, aged by the head's wait, then the oldest head. A tier may go over
// its quota by one request, so no length is too long to be pulled; the share of an idle tier is lent to the
// others.
TierOrder decide_tier_order(const TierConfig& config, const std::array<TierLoad, kTiers>& loads);

}  // namespace deepinfer::policy
