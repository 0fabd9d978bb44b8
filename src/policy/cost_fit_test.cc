// Serving specification 1.3 and 1.9: known coefficients are found again, negatives are clamped, bad fits
// refused, and the running fit follows the machine.
#include "policy/cost_fit.h"

#include <gtest/gtest.h>

#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

// The start-up grid of serving specification 1.3.
std::vector<CostSample> grid(const CostModel& m, double noise, uint64_t seed, bool decoder) {
  TestRandom random(seed);
  std::vector<CostSample> out;
  for (int64_t q = 256; q <= 32768; q *= 2) {
    for (int64_t c : {0, 16384, 65536, 262144, 1000000}) {
      for (int64_t keep : {0, 134}) {
        if (keep > 0 && !decoder) continue;
        CostSample s;
        add_rows(&s, q, c, keep);
        s.measured_ns = predict_ns(m, s) * (1 + noise * (2 * random.unit() - 1));
        out.push_back(s);
      }
    }
  }
  return out;
}

TEST(CostFit, RecoversKnownCoefficients) {
  // Every term is a visible part of some step of the grid; five measurements of each point.
  CostModel truth{0.4, 0.88, 9e3, 1e7, 0, 0, 0};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<CostSample> samples;
    for (uint64_t round = 0; round < 5; ++round) {
      std::vector<CostSample> once = grid(truth, 0.02, seed * 10 + round, false);
      samples.insert(samples.end(), once.begin(), once.end());
    }
    FitDecision f = fit_cost(samples, {}, CostModel{});
    ASSERT_TRUE(f.adopt) << name(f.reason);
    EXPECT_NEAR(f.model.a / truth.a, 1, 0.05);
    EXPECT_NEAR(f.model.b / truth.b, 1, 0.05);
    EXPECT_NEAR(f.model.d / truth.d, 1, 0.05);
    EXPECT_NEAR(f.model.e / truth.e, 1, 0.05);
    EXPECT_NEAR(f.partition_ratio, 1.1, 0.1);
  }
}

TEST(CostFit, RecoversTheDecoderRows) {
  CostModel truth{2e-3, 4e-3, 9e3, 2e6, 4e6, 8e4, 0.2};
  FitDecision f = fit_cost(grid(truth, 0, 1, true), {}, CostModel{});
  ASSERT_TRUE(f.adopt);
  EXPECT_NEAR(f.model.a / truth.a, 1, 1e-3);
  EXPECT_NEAR(f.model.g_decoder / truth.g_decoder, 1, 1e-3);
  // With one keep value e_decoder and d_decoder cannot be told apart; their sum is what counts.
  double sum = truth.e_decoder + truth.d_decoder * 134;
  EXPECT_NEAR((f.model.e_decoder + f.model.d_decoder * 134) / sum, 1, 1e-3);
}

TEST(CostFit, NegativeInterceptIsClampedAndTheRestFittedAgain) {
  CostModel truth{0.4, 0.8, 9e3, -5e5, 0, 0, 0};
  FitDecision f = fit_cost(grid(truth, 0, 1, false), {}, CostModel{});
  ASSERT_TRUE(f.adopt);
  EXPECT_EQ(f.model.e, 0);
  EXPECT_GT(f.model.a, 0);
  EXPECT_GT(f.model.b, 0);
  EXPECT_GT(f.model.d, 0);
  EXPECT_LT(f.median_relative_error, 0.1);
}

TEST(CostFit, RefusesTooFewPointsAndNoise) {
  CostModel old{1, 2, 3, 4, 0, 0, 0};
  std::vector<CostSample> few(100);
  for (size_t i = 0; i < few.size(); ++i) {
    add_rows(&few[i], 128 * static_cast<int64_t>(1 + i % 7), 0, 0);
    few[i].measured_ns = 1e6;
  }
  FitDecision f = fit_cost(few, {}, old);
  EXPECT_FALSE(f.adopt);
  EXPECT_EQ(f.reason, FitReason::kTooFewPoints);
  EXPECT_EQ(f.model, old);
  std::vector<CostSample> noisy = grid(CostModel{}, 0, 1, false);
  TestRandom random(3);
  for (CostSample& s : noisy) s.measured_ns *= random.one_in(2) ? 0.3 : 1.7;
  f = fit_cost(noisy, {}, old);
  EXPECT_FALSE(f.adopt);
  EXPECT_EQ(f.reason, FitReason::kErrorTooLarge);
  EXPECT_EQ(f.model, old);
}

StepMeasured random_step(TestRandom* random, const CostModel& machine) {
  StepMeasured e;
  add_rows(&e.sample, random->in(1, 8192), random->in(0, 200000), 0);
  e.sample.measured_ns = predict_ns(machine, e.sample);
  return e;
}

TEST(RunningFit, RefitsOnSchedule) {
  TestRandom random(4);
  FitState s;
  CostModel machine{2.4e-3, 2e-2, 1e4, 1e6, 0, 0, 0};
  for (int i = 0; i < 256; ++i) {
    EXPECT_FALSE(decide_fit(s).adopt) << i;
    apply(&s, random_step(&random, machine));
  }
  FitDecision f = decide_fit(s);
  ASSERT_TRUE(f.adopt);
  EXPECT_EQ(f.reason, FitReason::kFitted);
  EXPECT_NEAR(f.model.d / machine.d, 1, 0.01);
  apply(&s, CostAdopted{f.model});
  EXPECT_FALSE(decide_fit(s).adopt);
}

TEST(RunningFit, ThreeSlowStepsCorrectAtOnceAndTwoDoNot) {
  TestRandom random(5);
  FitState s;
  CostModel slow = s.model;
  for (double* c : {&slow.a, &slow.b, &slow.d}) *c *= 2;
  apply(&s, random_step(&random, slow));
  apply(&s, random_step(&random, slow));
  EXPECT_FALSE(decide_fit(s).adopt);
  apply(&s, random_step(&random, s.model));  // one good step ends the run
  apply(&s, random_step(&random, slow));
  apply(&s, random_step(&random, slow));
  EXPECT_FALSE(decide_fit(s).adopt);
  apply(&s, random_step(&random, slow));
  FitDecision f = decide_fit(s);
  ASSERT_TRUE(f.adopt);
  EXPECT_EQ(f.reason, FitReason::kScaledAfterSlowSteps);
  EXPECT_NEAR(f.model.d / s.model.d, 2, 1e-9);
}

TEST(RunningFit, ExcludedStepsDoNotCountAndTheRingIsBounded) {
  TestRandom random(6);
  FitState s;
  for (int i = 0; i < 2000; ++i) {
    StepMeasured e = random_step(&random, s.model);
    e.excluded = i % 2 == 0;
    if (e.excluded) e.sample.measured_ns *= 100;
    apply(&s, e);
  }
  EXPECT_EQ(s.ring.size(), 512u);
  EXPECT_EQ(s.slow_run, 0);
  EXPECT_NEAR(decide_fit(s).model.d / s.model.d, 1, 1e-3);
}

}  // namespace
}  // namespace deepinfer::policy
