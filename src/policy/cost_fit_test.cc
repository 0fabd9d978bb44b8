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

StepMeasured step_of(int64_t rows, int64_t context, int64_t decoder_rows, double measured_ms) {
  StepMeasured e;
  add_rows(&e.sample, rows, context, decoder_rows);
  e.sample.measured_ns = measured_ms * 1e6;
  return e;
}

// Tells the state of a step and adopts what is decided; true if that was something.
bool run_step(FitState* s, const StepMeasured& e) {
  apply(s, e);
  const FitDecision f = decide_fit(*s);
  if (f.adopt) apply(s, CostAdopted{f.model, f.scale});
  return f.adopt;
}

// The first seventeen steps of a recorded run of the small model: a row takes 1 ms and three neighbours take
// 12.9, 5.0 and 2.2 ms, which made the costs 4.8 times as large for the next 256 steps.
TEST(RunningFit, AHitchOfTheFirstStepsChangesNothing) {
  FitState s;
  s.model = {0, 0, 1.4003e6, 0, 0, 0, 0};
  const StepMeasured steps[] = {
      step_of(128, 0, 1, 185.4), step_of(1, 128, 1, 1.14), step_of(1, 129, 1, 0.97),
      step_of(1, 130, 1, 1.15),  step_of(1, 131, 1, 0.99), step_of(1, 132, 1, 1.16),
      step_of(1, 133, 1, 0.87),  step_of(1, 134, 1, 1.17), step_of(128, 0, 1, 172.6),
      step_of(1, 128, 1, 12.91), step_of(1, 129, 1, 5.02), step_of(1, 130, 1, 2.23),
      step_of(1, 131, 1, 13.0),  step_of(1, 132, 1, 1.13), step_of(1, 133, 1, 1.00),
      step_of(1, 134, 1, 2.15)};
  for (const StepMeasured& e : steps) EXPECT_FALSE(run_step(&s, e));
  EXPECT_EQ(s.model.d, 1.4003e6);
}

// A hitch that lasts is followed only as far as its best step says, and forgotten in three steps.
TEST(RunningFit, WhatWasSlowIsScaledBackWhenStepsAreFastAgain) {
  FitState s;
  s.model = {0, 0, 1e6, 1e6, 0, 0, 0};
  for (double times : {9.0, 3.0, 1.8}) run_step(&s, step_of(100, 0, 0, 101 * times));
  EXPECT_NEAR(s.scale, 1.8, 1e-9);
  EXPECT_NEAR(s.model.d, 1.8e6, 1);
  EXPECT_FALSE(run_step(&s, step_of(100, 0, 0, 101)));
  EXPECT_FALSE(run_step(&s, step_of(100, 0, 0, 99)));
  EXPECT_TRUE(run_step(&s, step_of(100, 0, 0, 101)));
  EXPECT_NEAR(s.scale, 1, 1e-9);
  EXPECT_NEAR(s.model.d, 1e6, 1);
  // Never below what was fitted: faster than that is for the next fit to find.
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(run_step(&s, step_of(100, 0, 0, 20)));
}

// Half the machine is lost: long steps are followed in three, short ones when they have taken 50 ms, and
// nothing is scaled twice for it, also where the decoder half is all of a step.
TEST(RunningFit, AMachineThatIsHalfAsFastIsFollowed) {
  const CostModel before{1e-3, 2e-3, 2e5, 4e6, 1e6, 5e5, 1};
  struct Case {
    int64_t rows, decoder_rows;
    int most_steps;
  };
  for (const Case c : {Case{4096, 134, 3}, Case{1, 1, 5}, Case{64, 1, 3}}) {
    FitState s;
    s.model = before;
    s.config.refit_every = 1 << 20;
    const StepMeasured plain = step_of(c.rows, 1000, c.decoder_rows, 0);
    const double took_ms = 2 * predict_ns(before, plain.sample) * 1e-6;
    int first = 0, times = 0;
    for (int i = 1; i <= 200; ++i) {
      if (!run_step(&s, step_of(c.rows, 1000, c.decoder_rows, took_ms))) continue;
      ++times;
      if (first == 0) first = i;
    }
    EXPECT_GE(first, 3) << c.rows;
    EXPECT_LE(first, c.most_steps) << c.rows;
    EXPECT_EQ(times, 1) << c.rows;
    EXPECT_NEAR(s.scale, 2, 1e-9) << c.rows;
    EXPECT_NEAR(s.model.d_decoder / before.d_decoder, 2, 1e-9) << c.rows;
  }
}

// A model that finds some steps slow and others fast is scaled to and fro; the fit that mends it still comes.
TEST(RunningFit, ScalingPutsNoFitOff) {
  TestRandom random(10);
  FitState s;
  const CostModel machine{0, 0, 2e6, 60e6, 0, 0, 0};
  s.model = {0, 0, 3e6, 20e6, 0, 0, 0};
  int scaled = 0, fitted_at = 0;
  for (int i = 1; i <= 256; ++i) {
    StepMeasured e = step_of(i % 40 < 20 ? random.in(1, 4) : random.in(300, 400), 0, 0, 0);
    e.sample.measured_ns = predict_ns(machine, e.sample);
    apply(&s, e);
    const FitDecision f = decide_fit(s);
    if (!f.adopt) continue;
    scaled += f.reason != FitReason::kFitted;
    if (f.reason == FitReason::kFitted) fitted_at = i;
    apply(&s, CostAdopted{f.model, f.scale});
  }
  EXPECT_GE(scaled, 4);
  EXPECT_EQ(fitted_at, 256);
  EXPECT_NEAR(s.model.e / machine.e, 1, 1e-3);
  EXPECT_EQ(s.scale, 1);
}

TEST(RunningFit, ARefusedFitIsNotTriedInEveryStep) {
  TestRandom random(9);
  FitState s;
  int tried = 0;
  for (int i = 0; i < 1024; ++i) {
    StepMeasured e = random_step(&random, s.model);
    e.sample.measured_ns *= random.one_in(2) ? 0.4 : 1.4;
    EXPECT_FALSE(run_step(&s, e));
    tried += decide_fit(s).reason == FitReason::kErrorTooLarge;
  }
  EXPECT_EQ(tried, 4);
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
  EXPECT_EQ(s.since_fit, 1000 - 3 * 256);
  s.since_fit = 256;  // a fit is due
  EXPECT_NEAR(decide_fit(s).model.d / s.model.d, 1, 1e-3);
}

}  // namespace
}  // namespace deepinfer::policy
