// Tiers, quotas, aging and fairness between tenants: serving specification 1.6 and 10.4.
#include "policy/tiers.h"

#include <gtest/gtest.h>

#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

TEST(TiersGolden, BoundsAreInclusiveBelow) {
  TierConfig c;
  struct Row {
    int64_t tokens;
    int tier;
  };
  for (const Row& r : {Row{0, 0}, Row{16383, 0}, Row{16384, 1}, Row{65535, 1}, Row{65536, 2}, Row{262143, 2},
                       Row{262144, 3}, Row{1048576, 3}}) {
    EXPECT_EQ(tier_of(c, r.tokens), r.tier) << r.tokens;
  }
}

std::array<TierLoad, kTiers> all_waiting() {
  std::array<TierLoad, kTiers> loads{};
  for (size_t k = 0; k < kTiers; ++k) loads[k] = {0, true, 0, k};
  return loads;
}

TEST(Tiers, LargestUnusedShareFirstThenOldestHead) {
  auto loads = all_waiting();
  loads[0].used_ns = 0.32e9;  // half of 0.64e9
  TierOrder o = decide_tier_order({}, loads);
  ASSERT_EQ(o.count, 4);
  EXPECT_EQ(o.tiers, (std::array<int, 4>{1, 2, 3, 0}));
  EXPECT_NEAR(o.quota_ns[3], 0.16e9, 1);
}

TEST(Tiers, QuotaIsOverdrawnByOneAndThenCloses) {
  auto loads = all_waiting();
  loads[3].used_ns = 5e9;  // one huge request was let in although its share is 0.16 s
  TierOrder o = decide_tier_order({}, loads);
  EXPECT_EQ(o.count, 3);
  loads[3].used_ns = 0.1e9;
  EXPECT_EQ(decide_tier_order({}, loads).count, 4);
}

TEST(Tiers, ShareOfIdleTiersIsLent) {
  std::array<TierLoad, kTiers> loads{};
  loads[3] = {1.0e9, true, 0, 0};
  TierOrder o = decide_tier_order({}, loads);
  ASSERT_EQ(o.count, 1);
  EXPECT_NEAR(o.quota_ns[3], 1.6e9, 1);
  loads[0] = {0, true, 0, 1};  // the lender comes back
  o = decide_tier_order({}, loads);
  ASSERT_EQ(o.count, 1);
  EXPECT_EQ(o.tiers[0], 0);
}

TEST(Tiers, WaitingAgesAHeadPastAnEmptierTier) {
  auto loads = all_waiting();
  loads[1].used_ns = 0.24e9;               // half used
  loads[1].head_wait_ns = 30'000'000'000;  // 3 ages: claim 0.5 * 4 = 2
  TierOrder o = decide_tier_order({}, loads);
  EXPECT_EQ(o.tiers[0], 1);
}

TEST(Tiers, EveryTierIsServedInBoundedRounds) {
  // All tiers backlogged with requests of very different sizes; the engine executes 0.4 s per round.
  std::array<double, kTiers> used{}, size = {0.01e9, 0.2e9, 0.8e9, 4e9};
  std::array<int64_t, kTiers> waited{}, longest{};
  for (int round = 0; round < 4000; ++round) {
    std::array<TierLoad, kTiers> loads{};
    for (size_t k = 0; k < kTiers; ++k) loads[k] = {used[k], true, waited[k] * 400'000'000, k};
    TierOrder o = decide_tier_order({}, loads);
    for (size_t k = 0; k < kTiers; ++k) ++waited[k];
    for (int i = 0; i < o.count; ++i) {
      size_t k = static_cast<size_t>(o.tiers[static_cast<size_t>(i)]);
      used[k] += size[k];
      longest[k] = std::max(longest[k], waited[k]);
      waited[k] = 0;
    }
    double left = 0.4e9;
    for (size_t k = 0; k < kTiers; ++k) {
      double run = std::min(used[k], left * std::array<double, 4>{0.4, 0.3, 0.2, 0.1}[k]);
      used[k] -= run;
    }
  }
  // A tier waits at most until its outstanding work has been executed at its share of the rounds.
  for (size_t k = 0; k < kTiers; ++k) {
    double share = 0.4e9 * std::array<double, 4>{0.4, 0.3, 0.2, 0.1}[k];
    EXPECT_LE(static_cast<double>(longest[k]), size[k] / share + 2) << k;
  }
}

TEST(FairQueue, ServiceFollowsWeights) {
  TestRandom random(9);
  FairQueue q;
  uint64_t arrival = 0;
  std::map<uint64_t, std::pair<int, double>> work;
  auto add = [&](int tenant) {
    double ns = random.unit() * 1e6 + 1e3;
    work[++arrival] = {tenant, ns};
    push(&q, TenantId(static_cast<uint32_t>(tenant)), tenant == 1 ? 3.0 : 1.0, ns, {0, 0, arrival, 0});
  };
  for (int i = 0; i < 50; ++i) {
    add(1);
    add(2);
  }
  double served[3] = {0, 0, 0};
  for (int i = 0; i < 5000; ++i) {
    QueueKey k = *q.waiting.begin();
    take_out(&q, k, true);
    auto [tenant, ns] = work[k.arrival];
    served[tenant] += ns;
    add(tenant);
  }
  EXPECT_NEAR(served[1] / served[2], 3.0, 0.3);
}

TEST(FairQueue, OneHugeRequestDoesNotDelayAnotherTenant) {
  FairQueue q;
  push(&q, TenantId(1), 1, 1e12, {0, 0, 1, 1});
  push(&q, TenantId(1), 1, 1e12, {0, 0, 2, 2});
  push(&q, TenantId(2), 1, 1e6, {0, 0, 3, 3});
  EXPECT_EQ(q.waiting.begin()->slot, 3u);
  // Priority goes before fairness.
  push(&q, TenantId(1), 1, 1e12, {-1, 0, 4, 4});
  EXPECT_EQ(q.waiting.begin()->slot, 4u);
}

TEST(FairQueue, AnEmptyQueueForgets) {
  FairQueue q;
  QueueKey a = push(&q, TenantId(1), 1, 5, {0, 0, 1, 1});
  take_out(&q, a, true);
  EXPECT_TRUE(q.finish.empty());
  EXPECT_EQ(q.virtual_ns, 0);
}

}  // namespace
}  // namespace deepinfer::policy
