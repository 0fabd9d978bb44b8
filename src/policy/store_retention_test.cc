// Lives, victims, the doubting clock, the choice of parts, and the price of a fetch with its hysteresis.
#include "policy/store_retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "policy/store_reads.h"
#include "policy/store_restore.h"
#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

constexpr int64_t kDay = 86400;

TEST(Retention, LivesByClassAndWish) {
  RetentionRules r;
  EXPECT_TRUE(validate(r).ok());
  auto life = [&](TtlClass traffic, StoredKind kind, TtlWish wish) {
    return decide_ttl_s(r, traffic, kind, wish);
  };
  for (StoredKind kind : {StoredKind::kBlock, StoredKind::kWindow}) {  // windows as blocks unless told
    EXPECT_EQ(life(TtlClass::kAgent, kind, {}), 3 * kDay);
    EXPECT_EQ(life(TtlClass::kChat, kind, {}), 7 * kDay);
    EXPECT_EQ(life(TtlClass::kChat, kind, {60, 0}), 60);
    EXPECT_EQ(life(TtlClass::kAgent, kind, {900 * kDay, 0}), r.longest_ttl_s);
  }
  // Raised, never lowered: a chat's life is not shortened by an agent's use.
  EXPECT_EQ(raised_expiry_s(1000, 500, 100), 1000u);
  EXPECT_EQ(raised_expiry_s(1000, 950, 100), 1050u);
  EXPECT_EQ(raised_expiry_s(0, UINT32_MAX - 5, 100), UINT32_MAX);
  EXPECT_FALSE(worth_recording(1000, 1010, 800));
  EXPECT_TRUE(worth_recording(1000, 1100, 800));
  EXPECT_FALSE(worth_recording(1100, 1000, 800));
  r.end_share = 0.95;
  EXPECT_FALSE(validate(r).ok());
}

TEST(Retention, WindowsLiveByTheirOwnRules) {
  struct Row {
    int64_t agent_s, chat_s;  // of the rules for windows
    TtlClass traffic;
    TtlWish wish;
    int64_t block_s, window_s;  // expected
  };
  constexpr TtlClass kA = TtlClass::kAgent, kC = TtlClass::kChat;
  const Row rows[] = {
      {600, 3600, kA, {}, 3 * kDay, 600},
      {600, 3600, kC, {}, 7 * kDay, 3600},
      {0, 3600, kA, {}, 3 * kDay, 3 * kDay},  // one of them alone
      {600, 0, kC, {}, 7 * kDay, 7 * kDay},
      {30 * kDay, 30 * kDay, kC, {}, 7 * kDay, 30 * kDay},  // longer than its blocks: allowed
      {600, 3600, kA, {50, 0}, 50, 50},                     // one wish for both, over any rule
      {600, 3600, kC, {50, 20}, 50, 20},
      {600, 3600, kC, {0, 20}, 7 * kDay, 20},  // a wish for windows alone
      {0, 0, kA, {50, 900 * kDay}, 50, 365 * kDay},
  };
  for (const Row& x : rows) {
    RetentionRules r;
    r.window_agent_ttl_s = x.agent_s;
    r.window_chat_ttl_s = x.chat_s;
    ASSERT_TRUE(validate(r).ok());
    EXPECT_EQ(decide_ttl_s(r, x.traffic, StoredKind::kBlock, x.wish), x.block_s);
    EXPECT_EQ(decide_ttl_s(r, x.traffic, StoredKind::kWindow, x.wish), x.window_s);
  }
  RetentionRules r;
  r.window_chat_ttl_s = -1;
  EXPECT_FALSE(validate(r).ok());
  r.window_chat_ttl_s = r.longest_ttl_s + 1;
  EXPECT_FALSE(validate(r).ok());
}

TEST(Retention, EvictsFromNinetyDownToEightyFive) {
  RetentionRules r;
  EXPECT_EQ(bytes_to_evict(r, INT64_MAX / 2), 0);  // no quota
  r.quota_bytes = 1000;
  EXPECT_EQ(bytes_to_evict(r, 900), 0);
  EXPECT_EQ(bytes_to_evict(r, 901), 51);
  EXPECT_EQ(bytes_to_evict(r, 1500), 650);
}

TEST(Retention, OldestFirstAndTailsBeforeHeads) {
  std::vector<EvictionCandidate> all;
  for (uint32_t i = 0; i < 10; ++i) all.push_back({i, 100, i, 10});      // one prefix, used together
  for (uint32_t i = 0; i < 10; ++i) all.push_back({50 + i, 90, i, 10});  // an older one
  auto ids = [&](int64_t bytes) {
    std::vector<uint32_t> out;
    for (const EvictionCandidate& c : choose_victims(all, bytes)) out.push_back(c.id);
    return out;
  };
  EXPECT_EQ(ids(0), std::vector<uint32_t>{});
  EXPECT_EQ(ids(25), (std::vector<uint32_t>{59, 58, 57}));
  EXPECT_EQ(ids(120), (std::vector<uint32_t>{59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 9, 8}));
  EXPECT_EQ(ids(1 << 20).size(), 20u);
}

TEST(StoreClock, NeverBackAndNeverALeap) {
  StoreClock c;
  constexpr int64_t kS = 1'000'000'000;
  apply(&c, ClockRead{1000, 0, 0});
  EXPECT_EQ(c.wall_s, 1000);
  apply(&c, ClockRead{1010, 10 * kS, 0});
  EXPECT_EQ(c.wall_s, 1010);
  apply(&c, ClockRead{1010 + 400 * kDay, 11 * kS, 0});  // not believed
  EXPECT_EQ(c.wall_s, 1011);
  apply(&c, ClockRead{1020 + 400 * kDay, 21 * kS, 0});  // and it goes on from there
  EXPECT_EQ(c.wall_s, 1021);
  apply(&c, ClockRead{500, 22 * kS, 0});
  EXPECT_EQ(c.wall_s, 1022);
  EXPECT_EQ(c.jumps, 2);
  // A machine that slept: the wall clock moved by less than the monotonic one may have missed.
  apply(&c, ClockRead{500 + 1000, 23 * kS, 0});
  EXPECT_EQ(c.wall_s, 2022);
  EXPECT_EQ(c.jumps, 2);
  // A restart with a clock behind what was recorded.
  StoreClock d;
  apply(&d, ClockRead{100, 0, 5000});
  EXPECT_EQ(d.wall_s, 5000);
  apply(&d, ClockRead{110, 10 * kS, 0});
  EXPECT_EQ(d.wall_s, 5010);
  // Fractions of seconds are not lost however often it is read.
  StoreClock e;
  apply(&e, ClockRead{0, 0, 100});
  for (int64_t i = 1; i <= 1000; ++i) apply(&e, ClockRead{i / 10 - 10'000'000, i * kS / 10, 0});
  EXPECT_GE(e.wall_s, 199);
}

TEST(Restore, PricesFollowMeasurements) {
  RestoreRules rules;
  RestoreState s;
  apply(&s, rules, FetchMeasured{100'000, 2'000'000, 5});
  EXPECT_TRUE(s.measured);
  EXPECT_NEAR(predicted_ns(s, 100'000), 2e6, 2e5);
  for (int i = 0; i < 50; ++i) apply(&s, rules, FetchMeasured{100'000'000, 1'000'000'000, 5});
  EXPECT_NEAR(predicted_ns(s, 100'000'000), 1e9, 5e7);  // 100 MB/s
  RestoreQuote q = quote(s, rules, 1000, 100'000'000);
  EXPECT_NEAR(q.ns_per_block, 1e6, 5e4);
  EXPECT_GE(q.deadline_ns, static_cast<int64_t>(1.9e9));
  EXPECT_EQ(predicted_ns(s, 0), 0);
}

TEST(Restore, FirstLayersFirstWhenAStepCanBeginMeanwhile) {
  // 100 ms of fetching, two fifths of them for the later layers, which are needed in the middle of the step.
  SplitQuery q{100e6, 0.4, 200e6, 0.5, true};
  EXPECT_TRUE(decide_split(q));  // in two parts it takes 250 ms, 100 for these; they are needed after 100
  q.step_ns = 199e6;
  EXPECT_FALSE(decide_split(q));
  q.step_ns = 1e9;
  EXPECT_TRUE(decide_split(q));
  q.alone = false;
  EXPECT_FALSE(decide_split(q));
  EXPECT_FALSE(decide_split({100e6, 0, 1e9, 0.5, true}));  // blocks that have one part
}

TEST(Restore, DoesNotFlipNearTheBreakEvenPoint) {
  RestoreRules rules;
  RestoreState s;
  apply(&s, rules, FetchMeasured{100'000, 1'000'000, 5});
  TestRandom random(3);
  // The planner's rule: fetch when the price is below the cost of computing, which varies by a fifth.
  int64_t flips = 0;
  bool last = true;
  for (int i = 0; i < 2000; ++i) {
    double compute = 1e6 * (0.9 + 0.2 * static_cast<double>(random.in(0, 1000)) / 1000);
    bool fetch = quote(s, rules, 1, 100'000).ns_per_block < compute;
    flips += fetch != last ? 1 : 0;
    last = fetch;
    apply(&s, RestoreAdopted{fetch});
  }
  EXPECT_LE(flips, 1);
  EXPECT_EQ(s.switches, flips);
  EXPECT_FALSE(s.pays);
  // Clearly quicker again: it comes back.
  EXPECT_LT(quote(s, rules, 1, 100'000).ns_per_block, 2e6);
  apply(&s, RestoreAdopted{true});
  EXPECT_TRUE(s.pays);
  s.pays = false;
  s.last_measure_ns = 100;
  EXPECT_FALSE(should_probe(s, rules, 100 + rules.probe_every_ns - 1));
  EXPECT_TRUE(should_probe(s, rules, 100 + rules.probe_every_ns));
}

TEST(Restore, AfterAMissedDeadlineNothingIsAskedBeforeAProbe) {
  RestoreRules rules;
  RestoreState s;
  apply(&s, rules, FetchMeasured{100'000, 1'000'000, 5});
  EXPECT_LT(quote(s, rules, 10, 100'000).ns_per_block, 1e6);
  apply(&s, FetchLate{1000});
  EXPECT_GE(quote(s, rules, 10, 100'000).ns_per_block, 1e12);
  EXPECT_FALSE(should_probe(s, rules, 1000 + rules.probe_every_ns - 1));
  EXPECT_TRUE(should_probe(s, rules, 1000 + rules.probe_every_ns));
  apply(&s, rules, FetchMeasured{1000, 400'000'000, 2000});  // the probe: slow indeed
  EXPECT_GT(quote(s, rules, 10, 100'000).ns_per_block, 1e7);
  EXPECT_LT(quote(s, rules, 10, 100'000).ns_per_block, 1e9);
}

TEST(Reads, OneMoreThanNeededAndNeverADeadPlace) {
  std::vector<ReadPlace> p(12, ReadPlace{true, 0});
  std::vector<int> all = choose_reads(p, 10, 0);
  EXPECT_EQ(all.size(), 11u);
  p[3].has_part = false;
  EXPECT_EQ(choose_reads(p, 10, 5), (std::vector<int>{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11}));
  p[3].has_part = true;
  p[7].queue = 4;  // the busiest is left out
  EXPECT_EQ(choose_reads(p, 10, 5), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11}));
  // Turns: over many reads each place is left out equally often.
  p[7].queue = 0;
  std::vector<int> asked(12);
  for (uint64_t turn = 0; turn < 1200; ++turn) {
    for (int i : choose_reads(p, 10, turn)) ++asked[static_cast<size_t>(i)];
  }
  for (int n : asked) EXPECT_EQ(n, 1100);
  p[0].has_part = p[1].has_part = false;
  EXPECT_EQ(choose_reads(p, 10, 0).size(), 10u);
  p[2].has_part = false;
  EXPECT_TRUE(choose_reads(p, 10, 0).empty());
  std::vector<bool> done(12, true);
  EXPECT_EQ(choose_hedge(p, done), -1);
  done[5] = false;
  EXPECT_EQ(choose_hedge(p, done), 5);
}

// T-KV-10: with exponential answers the tenth of eleven takes 2.020 means, the last of ten 2.929.
TEST(Reads, HedgingMeanOfExponentialAnswers) {
  TestRandom random(11);
  std::vector<ReadPlace> p(12, ReadPlace{true, 0});
  double hedged = 0, plain = 0;
  constexpr int kReads = 100'000;
  for (int r = 0; r < kReads; ++r) {
    std::vector<int> ask = choose_reads(p, 10, static_cast<uint64_t>(r));
    std::vector<double> t;
    for (size_t i = 0; i < ask.size(); ++i) t.push_back(-std::log(random.unit() + 0x1p-54));
    plain += *std::max_element(t.begin(), t.begin() + 10);
    std::sort(t.begin(), t.end());
    hedged += t[9];
  }
  EXPECT_NEAR(hedged / kReads, 2.020, 0.02);
  EXPECT_NEAR(plain / kReads, 2.929, 0.02);
}

TEST(Reads, WritesAndPlacement) {
  EXPECT_EQ(judge_write(12, 12), WriteVerdict::kDone);
  EXPECT_EQ(judge_write(12, 11), WriteVerdict::kDoneRepair);
  EXPECT_EQ(judge_write(12, 10), WriteVerdict::kAbort);
  EXPECT_TRUE(place_parts(10, 2, 5, 0).empty());  // one domain would hold three
  for (int domains : {6, 7, 12, 20}) {
    std::vector<int> where = place_parts(10, 2, domains, 3);
    ASSERT_EQ(where.size(), 12u);
    std::vector<int> count(static_cast<size_t>(domains));
    for (int d : where) EXPECT_LE(++count[static_cast<size_t>(d)], 2);
  }
}

}  // namespace
}  // namespace deepinfer::policy
