// The running policy: modes, the switch, trials, alarms, and that the total never reads this round.
#include "policy/speculation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>

namespace deepinfer::policy {
namespace {

RowCurve curve(double fixed, double per_row, int64_t most = 512) {
  std::vector<CurvePoint> p;
  for (int64_t r = 1; r <= most; r *= 2) p.push_back({r, fixed + per_row * static_cast<double>(r), 0});
  return *make_curve(p, 0);
}

// A machine and a draft head: requests that accept each draft with probability `right`, a head that says so,
// and step times that may change.
struct World {
  SpeculationState s;
  double right = 0.8;
  double fixed_ns = 1000, row_ns = 10, draft_ns = 50, draft_row_ns = 0;
  std::mt19937_64 random{7};
  int requests = 4;
  int64_t delivered = 0;
  std::vector<SeqId> asked;  // in the last draft pass
  // Where set: how often a draft is right changes from round to round, the same for all requests.
  std::function<double()> moment;
  double ns = 0;

  explicit World(SpeculationMode mode, int fixed = 5) {
    SpeculationConfig c;
    c.mode = mode;
    c.fixed = fixed;
    s = *make_speculation(c);
  }
  void measure() { apply(&s, CurvesMeasured{curve(fixed_ns, row_ns), curve(draft_ns, draft_row_ns + 1e-6)}); }
  BudgetDecision decide() const {
    std::vector<BudgetRequest> r;
    for (int i = 0; i < requests; ++i) r.push_back({SeqId(static_cast<uint64_t>(i + 1)), 5});
    return decide_drafts(s, {0, r});
  }
  BudgetDecision step() {
    BudgetDecision d = decide();
    apply(&s, BudgetAdopted{d});
    if (moment) right = moment();
    auto logit = static_cast<float>(std::log(right / (1 - right)));
    std::vector<float> logits(5, logit);
    std::vector<double> alive = survivals_of(s, logits);
    asked.clear();
    for (int64_t i = 0; d.draft && i < d.ask; ++i)
      asked.push_back(SeqId(static_cast<uint64_t>((d.ask_first + i) % requests + 1)));
    std::vector<DraftRow> rows(asked.size(), DraftRow{alive, 5});
    std::vector<int> lengths = choose_lengths(rows, d.total, d.dead_below);
    int64_t verified = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    auto drafting = static_cast<int64_t>(asked.size());
    double draft = draft_ns + draft_row_ns * static_cast<double>(drafting);
    SpeculationStep measured{requests + verified,
                             -1,
                             fixed_ns + row_ns * static_cast<double>(requests + verified),
                             drafting,
                             draft,
                             false};
    apply(&s, measured);
    ns += measured.verify_ns + (d.draft ? draft : 0);
    delivered += requests;
    if (!d.draft) return d;
    DraftsJudged judged;
    for (size_t i = 0; i < asked.size(); ++i) {
      int most = lengths[i], accepted = 0;
      while (accepted < most && static_cast<double>(random() >> 11) * 0x1p-53 < right) ++accepted;
      delivered += accepted;
      judged.requests.push_back({asked[i], StateOrigin::kCold, logits, most, accepted});
    }
    apply(&s, judged);
    return d;
  }
};

TEST(Speculation, ModesThatDoNotMeasure) {
  World off(SpeculationMode::kOff), fixed(SpeculationMode::kFixed, 3), lane(SpeculationMode::kLane);
  EXPECT_FALSE(off.step().draft);
  EXPECT_EQ(fixed.step().total, 12);
  EXPECT_EQ(lane.step().total, 20);  // unknown requests count as certain
  lane.right = 0.3;
  lane.step();
  EXPECT_EQ(lane.step().total, 4);  // 0.3 survives the cut, 0.09 does not
  World none(SpeculationMode::kDynamic);
  BudgetDecision d = none.decide();
  EXPECT_EQ(d.reason, BudgetReason::kNoCurve);
  EXPECT_EQ(d.total, 20);
}

TEST(Speculation, SixDraftsAreRefusedWithTheRule) {
  SpeculationConfig c;
  for (int drafts : {6, 7, 0}) {
    c.drafts = c.calibration.positions = drafts;
    auto r = make_speculation(c);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), Code::kInvalidConfig);
    EXPECT_NE(r.status().message().find("1 to 5"), std::string::npos);
  }
  c = {};
  c.mode = SpeculationMode::kFixed;
  c.fixed = 6;
  EXPECT_FALSE(make_speculation(c).ok());
}

TEST(Speculation, CheapRowsVerifyEverythingDearOnesNothing) {
  World cheap(SpeculationMode::kDynamic);
  cheap.row_ns = 0.01;
  cheap.measure();
  EXPECT_EQ(cheap.step().total, 20);
  World dear(SpeculationMode::kDynamic);
  dear.fixed_ns = 1;
  dear.row_ns = 1000;
  dear.measure();
  for (int i = 0; i < 10; ++i) dear.step();
  BudgetDecision d = dear.step();
  EXPECT_EQ(d.reason, BudgetReason::kDoesNotPay);
  EXPECT_FALSE(d.draft);
  EXPECT_EQ(dear.s.counters.switched_off, 1);
}

// Switched off, tried after 32, 64, 128 ... decisions, and back when rows become cheap or drafts right.
TEST(Speculation, SwitchesOffTriesAndComesBack) {
  World w(SpeculationMode::kDynamic);
  w.fixed_ns = 1000;
  w.row_ns = 900;
  w.right = 0.5;
  w.measure();
  std::vector<int> trials;
  for (int i = 0; i < 600; ++i) {
    if (w.step().reason == BudgetReason::kTrial) trials.push_back(i);
  }
  EXPECT_FALSE(w.s.on);
  EXPECT_EQ(w.s.counters.switched_off, 1);
  ASSERT_GE(trials.size(), 4u);
  EXPECT_EQ(trials[1] - trials[0], 64);
  EXPECT_EQ(trials[2] - trials[1], 128);
  EXPECT_EQ(trials[3] - trials[2], 256);
  World cheaper = w;
  cheaper.row_ns = 5;
  cheaper.measure();
  EXPECT_EQ(cheaper.step().reason, BudgetReason::kBestTotal);
  EXPECT_TRUE(cheaper.s.on);
  EXPECT_EQ(cheaper.s.counters.switched_on, 1);
  // Nobody can know that drafts became right, until a trial shows it.
  w.right = 0.98;
  int64_t trials_before = w.s.counters.trials;
  for (int i = 0; i < 6000 && !w.s.on; ++i) w.step();
  EXPECT_TRUE(w.s.on);
  EXPECT_GT(w.s.counters.trials, trials_before);
}

// In a large batch a trial asks a few requests, others each time, until all were asked.
TEST(Speculation, ATrialAsksAFew) {
  World w(SpeculationMode::kDynamic);
  w.requests = 20;
  w.row_ns = 900;
  w.draft_row_ns = 300;
  w.right = 0.5;
  w.measure();
  std::set<SeqId> seen;
  int trials = 0;
  while (trials < 3) {
    int64_t before = w.s.counters.drafted;
    BudgetDecision d = w.step();
    if (d.reason != BudgetReason::kTrial) continue;
    ++trials;
    EXPECT_EQ(d.ask, 8);
    EXPECT_EQ(w.s.counters.drafted - before, 8 * 5);
    EXPECT_GE(d.total, 8);
    EXPECT_LE(d.total, 8 * 5);
    seen.insert(w.asked.begin(), w.asked.end());
  }
  EXPECT_EQ(seen.size(), 20u);
  // What the few show is enough to come back.
  w.right = 0.98;
  w.draft_row_ns = 10;
  w.row_ns = 100;
  w.measure();
  for (int i = 0; i < 3000 && !w.s.on; ++i) w.step();
  EXPECT_TRUE(w.s.on);
  EXPECT_EQ(w.step().ask, 20);
}

// Who may take no draft is not counted among those asked.
TEST(Speculation, OnlyRequestsWithACapAreAsked) {
  World w(SpeculationMode::kDynamic);
  w.row_ns = 0.001;
  w.measure();
  std::vector<BudgetRequest> r{{SeqId(1), 0}, {SeqId(2), 2}, {SeqId(3), 5}};
  EXPECT_EQ(decide_drafts(w.s, {0, r}).ask, 2);
}

// In a world of its own model dynamic is as fast as every fixed depth and as none, at every load.
TEST(Speculation, DynamicIsNeverBehindTheBestFixedDepth) {
  for (int requests : {1, 4, 16, 64}) {
    for (double right : {0.2, 0.6, 0.9}) {
      auto rate = [&](SpeculationMode mode, int fixed) {
        World w(mode, fixed);
        w.requests = requests;
        w.right = right;
        w.row_ns = 25;
        w.draft_ns = 150;
        w.measure();
        for (int i = 0; i < 1500; ++i) w.step();
        return static_cast<double>(w.delivered) / w.ns;
      };
      double best = rate(SpeculationMode::kOff, 0);
      for (int k = 1; k <= 5; ++k) best = std::max(best, rate(SpeculationMode::kFixed, k));
      // Two percent for learning, and a gain near the margin may be left alone.
      EXPECT_GT(rate(SpeculationMode::kDynamic, 5), best * 0.98 * (1 - SpeculationConfig{}.gain))
          << requests << " " << right;
    }
  }
}

double rate_of(SpeculationMode mode, int fixed, const std::function<double(std::mt19937_64*, int)>& moment) {
  World w(mode, fixed);
  w.requests = 1;
  w.row_ns = 100;
  w.draft_ns = 2000;
  std::mt19937_64 random(11);
  int step = 0;
  w.moment = [&] { return moment(&random, step++); };
  w.measure();
  for (int i = 0; i < 6000; ++i) w.step();
  return static_cast<double>(w.delivered) / w.ns;
}

// Drafting pays in one step of three, but which one nobody can know: a good round says nothing of the next.
TEST(Speculation, AGoodRoundAloneIsNoReasonToGoOn) {
  auto moment = [](std::mt19937_64* random, int) { return (*random)() % 3 == 0 ? 0.95 : 0.1; };
  double off = rate_of(SpeculationMode::kOff, 0, moment);
  EXPECT_LT(rate_of(SpeculationMode::kFixed, 5, moment), off * 0.9);
  EXPECT_GT(rate_of(SpeculationMode::kDynamic, 5, moment), off * 0.98);
}

// Steps with drafts take longer than their curves say, and steps without do not: drafting that only pays on
// paper ends.
TEST(Speculation, WhatStepsWithDraftsReallyTakeCounts) {
  World w(SpeculationMode::kDynamic);
  w.requests = 1;
  w.right = 0.6;
  w.measure();
  w.draft_ns = 2500;  // the curve said 50
  for (int i = 0; i < 400; ++i) {
    w.step();
    w.s.draft_refinement = start_refinement(w.s.draft);  // as if the curve could not be corrected
  }
  EXPECT_GT(w.s.slower, 1.5);
  EXPECT_FALSE(w.s.on);
}

// Good and bad spells: drafting through the good ones beats both drafting always and never.
TEST(Speculation, DraftsThroughGoodSpells) {
  auto moment = [](std::mt19937_64*, int step) { return step % 150 < 75 ? 0.95 : 0.05; };
  double off = rate_of(SpeculationMode::kOff, 0, moment),
         always = rate_of(SpeculationMode::kFixed, 5, moment);
  EXPECT_GT(rate_of(SpeculationMode::kDynamic, 5, moment), std::max(off, always) * 1.05);
}

TEST(Speculation, TheTotalReadsEarlierRoundsOnly) {
  World w(SpeculationMode::kDynamic);
  w.measure();
  w.step();
  BudgetDecision before = w.decide();
  // Drafts of the coming round exist now, but nothing was judged: the same decision.
  survivals_of(w.s, std::vector<float>{9, 9, 9, 9, 9});
  BudgetDecision after = w.decide();
  EXPECT_EQ(before.total, after.total);
  // Another request's slot is never used: an unknown one counts as certain.
  std::vector<BudgetRequest> stranger{{SeqId(999), 5}};
  w.right = 0.01;
  w.step();
  EXPECT_GT(decide_drafts(w.s, {0, stranger}).total, 0);
  apply(&w.s, SequenceGone{SeqId(1)});
  EXPECT_EQ(w.s.latest.count(SeqId(1)), 0u);
}

TEST(Speculation, CapsAndPromptRowsAreRespected) {
  World w(SpeculationMode::kDynamic);
  w.row_ns = 0.001;
  w.measure();
  std::vector<BudgetRequest> r{{SeqId(1), 0}, {SeqId(2), 2}, {SeqId(3), 9}};
  EXPECT_EQ(decide_drafts(w.s, {100, r}).total, 7);
  std::vector<BudgetRequest> last{{SeqId(1), 0}};
  EXPECT_EQ(decide_drafts(w.s, {0, last}).reason, BudgetReason::kNothingToVerify);
}

// A long prompt in the same step is no reason to draft: its time is not the drafts' doing.
TEST(Speculation, PromptRowsDoNotMakeDraftsCheap) {
  World w(SpeculationMode::kDynamic);
  w.right = 0.3;
  w.draft_ns = 900;
  w.measure();
  for (int i = 0; i < 100; ++i) w.step();
  std::vector<BudgetRequest> r{{SeqId(1), 5}, {SeqId(2), 5}, {SeqId(3), 5}, {SeqId(4), 5}};
  EXPECT_FALSE(decide_drafts(w.s, {0, r}).draft);
  EXPECT_FALSE(decide_drafts(w.s, {5000, r}).draft);
}

TEST(Speculation, AlarmWhenPredictionsDriftAndWhenAnOriginIsBroken) {
  World w(SpeculationMode::kFixed, 5);
  auto judge = [&](StateOrigin origin, float logit, int accepted) {
    apply(&w.s, DraftsJudged{{{SeqId(1), origin, std::vector<float>(5, logit), 5, accepted}}});
  };
  for (int i = 0; i < 300; ++i) judge(StateOrigin::kCold, 6, i % 10 == 0 ? 4 : 5);
  EXPECT_FALSE(w.s.drifting);
  for (int i = 0; i < 300; ++i) judge(StateOrigin::kHit, 6, 1);
  EXPECT_TRUE(w.s.origin_alarm[static_cast<int>(StateOrigin::kHit)]);
  EXPECT_FALSE(w.s.origin_alarm[static_cast<int>(StateOrigin::kResumed)]);
  EXPECT_EQ(w.s.counters.origin_alarms, 1);
  EXPECT_GE(w.s.counters.drift_alarms, 1);  // sure of all five, right once
  for (int i = 0; i < 4000; ++i) judge(StateOrigin::kHit, 6, 5);
  EXPECT_FALSE(w.s.origin_alarm[static_cast<int>(StateOrigin::kHit)]);
  EXPECT_FALSE(w.s.drifting);
  EXPECT_EQ(w.s.counters.position[0].verified, 4600);
}

}  // namespace
}  // namespace deepinfer::policy
