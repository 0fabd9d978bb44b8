// Worked vectors of the serving specification 6.7, brute force on small cases, movement cost, windows, and
// the life of a rearrangement.
#include "policy/eplb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "policy/eplb_loads.h"
#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

EplbHistory rows(int experts, std::vector<float> w) {
  return {experts, std::move(w)};
}

// All multisets of rank contents (two ranks).
double brute_force(const EplbShape& s, const EplbHistory& h) {
  std::vector<std::vector<int>> sets;
  std::vector<int> pick;
  std::function<void(int)> choose = [&](int from) {
    if (static_cast<int>(pick.size()) == s.slots) {
      sets.push_back(pick);
      return;
    }
    for (int e = from; e < s.experts; ++e) {
      pick.push_back(e);
      choose(e + 1);
      pick.pop_back();
    }
  };
  choose(0);
  double best = 1e300;
  for (const auto& a : sets) {
    for (const auto& b : sets) {
      Placement p{a};
      p.slot.insert(p.slot.end(), b.begin(), b.end());
      if (broken_placement(s, p).empty()) best = std::min(best, placement_cost(s, h, p));
    }
  }
  return best;
}

TEST(EplbGolden, WorkedVectors) {
  struct Case {
    EplbShape shape;
    std::vector<float> load;
    double greedy, best;
  };
  for (const Case& c : {
           Case{{4, 2, 2}, {12, 0, 7, 5, 0, 8, 7, 5}, 32, 24},
           Case{{4, 2, 2}, {4, 3, 1, 2, 0, 1, 9, 9, 10, 7, 1, 1}, -1, 26},
           Case{{4, 2, 3}, {0, 2, 5, 9, 11, 12, 8, 0, 6, 6, 9, 0}, 47, 35.5},
           Case{{4, 2, 2}, {8, 2, 2, 0, 2, 8, 0, 2, 8, 2, 0, 2}, 28, 26},
           Case{{4, 2, 3}, {8, 2, 2, 0, 2, 8, 0, 2, 8, 2, 0, 2}, -1, 21},
       }) {
    const EplbHistory h = rows(4, c.load);
    const Placement greedy = average_greedy(c.shape, h);
    if (c.greedy > 0) {
      EXPECT_NEAR(placement_cost(c.shape, h, greedy), c.greedy, 1e-6);
    }
    const EplbDecision d = decide_experts(c.shape, h, {}, {});
    EXPECT_EQ(broken_placement(c.shape, d.placement), "");
    EXPECT_NEAR(d.new_cost, c.best, 1e-6);
    EXPECT_NEAR(brute_force(c.shape, h), c.best, 1e-6);
  }
}

TEST(EplbGolden, EqualAveragesAreNotEqualSteps) {
  // Both pairings have the same averages; only one keeps the peaks apart.
  const EplbShape s{4, 2, 2};
  const EplbHistory h = rows(4, {4, 3, 1, 2, 0, 1, 9, 9, 10, 7, 1, 1});
  EXPECT_DOUBLE_EQ(placement_cost(s, h, {{0, 1, 2, 3}}), 42);
  EXPECT_DOUBLE_EQ(placement_cost(s, h, {{0, 2, 1, 3}}), 26);
}

TEST(EplbGolden, NearBruteForceOnThousandCases) {
  TestRandom random(1);
  int equal = 0, above = 0;
  double worst = 1;
  for (int i = 0; i < 1000; ++i) {
    const int experts = static_cast<int>(random.in(4, 6));
    const EplbShape s{experts, 2, 3};
    EplbHistory h{experts, {}};
    for (int k = 0; k < 3 * experts; ++k) h.load.push_back(static_cast<float>(random.in(0, 12)));
    const double best = brute_force(s, h);
    const EplbDecision d = decide_experts(s, h, {}, {});
    ASSERT_EQ(broken_placement(s, d.placement), "");
    const double ratio = best > 0 ? d.new_cost / best : 1;
    ASSERT_GE(ratio, 1 - 1e-6);
    worst = std::max(worst, ratio);
    ASSERT_LE(d.new_cost, placement_cost(s, h, average_greedy(s, h)) * (1 + 1e-9));
    equal += ratio < 1 + 1e-6;
    above += ratio > 1.05;
  }
  EXPECT_LE(worst, 1.15);
  EXPECT_GE(equal, 950);
  EXPECT_LE(above, 20);
}

TEST(Eplb, LoadsAreWhatARecountSays) {
  TestRandom random(2);
  const EplbShape s{12, 4, 5};
  EplbHistory h{12, {}};
  for (int i = 0; i < 7 * 12; ++i) h.load.push_back(static_cast<float>(random.in(0, 50)));
  EplbLoads loads(s, h, average_greedy(s, h));
  int swaps = 0, replaced = 0;
  for (int i = 0; i < 4000; ++i) {
    const int a = static_cast<int>(random.in(0, 19)), b = static_cast<int>(random.in(0, 19));
    const int e = static_cast<int>(random.in(0, 11));
    if (loads.rank_of(a) == loads.rank_of(b)) continue;
    double promised = 0;
    if (i % 2 == 0) {
      if (loads.holds(loads.rank_of(a), loads.at(b)) || loads.holds(loads.rank_of(b), loads.at(a))) continue;
      promised = loads.swap_cost(a, b);
      loads.swap(a, b);
      ++swaps;
    } else {
      if (loads.copies(loads.at(a)) < 2 || loads.at(a) == e || loads.at(b) == e) continue;
      if (loads.holds(loads.rank_of(b), e)) continue;
      if (loads.holds(loads.rank_of(a), loads.at(b)) && loads.at(b) != loads.at(a)) continue;
      promised = loads.replace_cost(a, e, b);
      loads.replace(a, e, b);
      ++replaced;
    }
    ASSERT_EQ(broken_placement(s, loads.placement()), "");
    ASSERT_NEAR(loads.cost(), promised, 1e-6);
    ASSERT_NEAR(placement_cost(s, h, loads.placement()), promised, 1e-6);
  }
  EXPECT_GT(swaps, 100);
  EXPECT_GT(replaced, 50);
}

TEST(Eplb, UniformLoadIsPerfectAndTokensAreConserved) {
  const EplbShape s{384, 64, 7};
  EplbHistory h{384, std::vector<float>(384 * 3, 10)};
  const Placement p = average_greedy({384, 64, 6}, h);
  EXPECT_DOUBLE_EQ(moe_lb({384, 64, 6}, h, p), 1);
  const EplbDecision d = decide_experts(s, h, {}, {});
  EXPECT_EQ(broken_placement(s, d.placement), "");
  std::vector<int> copies(384, 0);
  for (int e : d.placement.slot) ++copies[static_cast<size_t>(e)];
  double sum = 0;
  for (int e : d.placement.slot) sum += 10.0 / copies[static_cast<size_t>(e)];
  EXPECT_NEAR(sum, 3840, 1e-6);
}

TEST(Eplb, MovementCostReducesMovement) {
  TestRandom random(6);
  const EplbShape s{48, 8, 7};
  EplbHistory before{48, {}}, after{48, {}};
  for (int t = 0; t < 20; ++t) {
    for (int e = 0; e < 48; ++e)
      before.load.push_back(static_cast<float>(random.in(0, 100)) + (e < 6 ? 150.f : 0.f));
    for (int e = 0; e < 48; ++e)
      after.load.push_back(static_cast<float>(random.in(0, 100)) + (e > 41 ? 150.f : 0.f));
  }
  const Placement old = decide_experts(s, before, {}, {}).placement;
  const EplbDecision free = decide_experts(s, after, old, {});
  ASSERT_EQ(free.reason, EplbReason::kBetter);
  EXPECT_LT(free.new_cost, free.old_cost);
  EXPECT_EQ(free.moved, moved_slots(s, old, free.placement));
  EplbSearch dear;
  dear.migration_cost = (free.old_cost - free.new_cost) / static_cast<double>(free.moved) * 0.9;
  const EplbDecision costly = decide_experts(s, after, old, dear);
  EXPECT_LT(costly.moved, free.moved);
  dear.migration_cost = free.old_cost;
  EXPECT_EQ(decide_experts(s, after, old, dear).reason, EplbReason::kNotWorthIt);
  EXPECT_EQ(decide_experts(s, after, old, dear).placement, old);
  EXPECT_EQ(decide_experts(s, before, old, {}).reason, EplbReason::kNotWorthIt);  // nothing to gain
}

TEST(Eplb, HierarchicalKeepsGroupsOnTheirNode) {
  TestRandom random(8);
  const EplbShape s{32, 8, 5, 2, 8};
  EplbHistory h{32, {}};
  for (int i = 0; i < 10 * 32; ++i) h.load.push_back(static_cast<float>(random.in(0, 100)));
  const EplbDecision d = decide_experts(s, h, {}, {});
  EXPECT_EQ(broken_placement(s, d.placement), "");
  std::vector<int> node_of(8, -1);
  for (size_t i = 0; i < d.placement.slot.size(); ++i) {
    const int node = static_cast<int>(i) / (4 * 5);
    int& group = node_of[static_cast<size_t>(d.placement.slot[i] / 4)];
    EXPECT_TRUE(group < 0 || group == node);
    group = node;
  }
  EXPECT_NE(problem({32, 8, 5, 3, 8}), "");
  EXPECT_NE(problem({32, 8, 3, 1, 1}), "");
}

TEST(Eplb, CompressKeepsOrderAndDropsEmptySteps) {
  EplbHistory h{2, {}};
  for (int t = 0; t < 10; ++t) {
    h.load.push_back(t == 4 ? 0.f : 100.f + static_cast<float>(t));
    h.load.push_back(0);
  }
  EplbHistory c = compress(h, 3);
  ASSERT_EQ(c.steps(), 3);
  EXPECT_FLOAT_EQ(c.load[0], 303);              // steps 0 to 2
  EXPECT_FLOAT_EQ(c.load[2], 103 + 105 + 106);  // 3, 5, 6
  EXPECT_FLOAT_EQ(c.load[4], 107 + 108 + 109);
  EXPECT_EQ(compress({2, {0, 0}}, 3).steps(), 0);
}

TEST(Eplb, PublishedShapes) {
  EXPECT_EQ(prefill_eplb(4).shape.slots, 100);
  EXPECT_EQ(prefill_eplb(2).shape.slots, 196);
  EXPECT_EQ(decode_eplb(64).shape.slots, 7);
  EXPECT_EQ(decode_eplb(128).shape.slots, 4);
  EXPECT_EQ(prefill_eplb(4).window_steps, 100);
  EXPECT_EQ(decode_eplb(64).interval_steps, 10000);
}

TEST(Eplb, WindowIntervalSwapAbortResize) {
  EplbConfig c;
  c.shape = {4, 2, 2};
  c.window_steps = 3;
  c.interval_steps = 5;
  c.deadline_ns = 100;
  EplbState s = make_eplb(c);
  ASSERT_EQ(broken_placement(c.shape, s.placement), "");
  auto step = [&](std::vector<float> w) { apply(&s, EplbStep{std::move(w)}); };
  step({});  // idle: counts, is no sample
  for (float i = 1; i <= 4; ++i) step({i, 0, 0, 0});
  EXPECT_EQ(history_of(s).load, (std::vector<float>{2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(decide_action(s, 0), EplbAction::kRearrange);
  EplbDecision d;
  d.reason = EplbReason::kNotWorthIt;
  apply(&s, EplbStarted{d, 0});
  EXPECT_EQ(decide_action(s, 0), EplbAction::kNone);
  EXPECT_EQ(s.next_due, 10);
  for (int i = 0; i < 5; ++i) step({0, 1, 2, 3});
  d.reason = EplbReason::kBetter;
  d.placement = {{0, 3, 1, 2}};
  apply(&s, EplbStarted{d, 50});
  EXPECT_FALSE(weight_update_allowed(s));
  apply(&s, EplbRankReady{s.pending_id - 1});  // of an older one
  apply(&s, EplbRankReady{s.pending_id});
  EXPECT_EQ(decide_action(s, 149), EplbAction::kNone);
  EXPECT_EQ(decide_action(s, 150), EplbAction::kAbort);
  const Placement before = s.placement;
  apply(&s, EplbAborted{s.pending_id});
  EXPECT_EQ(s.placement, before);
  EXPECT_EQ(s.aborted, 1);
  for (int i = 0; i < 5; ++i) step({});
  apply(&s, EplbStarted{d, 200});
  apply(&s, EplbRankReady{s.pending_id});
  apply(&s, EplbRankReady{s.pending_id});
  EXPECT_EQ(decide_action(s, 200), EplbAction::kSwap);
  apply(&s, EplbSwapped{s.pending_id});
  EXPECT_EQ(s.placement, d.placement);
  EXPECT_TRUE(weight_update_allowed(s));
  apply(&s, EplbResized{{4, 3, 2}});
  EXPECT_EQ(history_of(s).steps(), 0);
  EXPECT_EQ(broken_placement({4, 3, 2}, s.placement), "");
}

}  // namespace
}  // namespace deepinfer::policy
