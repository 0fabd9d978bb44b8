// Budgets of verification in the fleet's decode steps (serving specification 4.8, 14.2).
#include <gtest/gtest.h>

#include <numeric>

#include "fleet_fixture.h"

namespace deepinfer::sim {
namespace {

using policy::SpeculationMode;

FleetResult with(SpeculationMode mode, double rate, int fixed = 5) {
  FleetConfig c = small_fleet(2);
  c.decode_groups = 1;
  c.verify.mode = mode;
  c.verify.fixed = fixed;
  c.measure_s = 10;
  c.warmup_s = 6;
  WorkloadConfig w = work(rate);
  w.mix = {chat_mix()};  // long answers: many requests decode at a time
  return run(c, w);
}

TEST(Verify, TheBudgetIsThePolicysForEveryRank) {
  const VerifyModel model({}, {});
  std::vector<uint8_t> kinds(60);
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<uint8_t>(i % VerifyModel::kKinds);
  const VerifyModel::Plan p = model.decide(kinds, 60 * 131072);
  double drafts = 0, pace = 0;
  for (uint8_t k : kinds) {
    drafts += static_cast<double>(p.drafts[k]);
    pace += static_cast<double>(p.pace[k]);
  }
  EXPECT_NEAR(drafts, 213, 25);  // 3.55 of five, 3.163 tokens: the published workload
  EXPECT_NEAR(pace / 60, 3.163, 0.1);
  for (int k = 1; k < VerifyModel::kKinds; ++k) EXPECT_GE(p.drafts[k] + 0.3F, p.drafts[k - 1]);
  // What survives better is verified first, by requests that come later too.
  const VerifyModel::Plan poor = model.decide(std::vector<uint8_t>(100, 0), 100 * 131072);
  EXPECT_EQ(poor.drafts[15], 5);
  EXPECT_LE(poor.drafts[0], 1);
  EXPECT_GT(p.deviation[8], 0.1F);
  EXPECT_LT(p.deviation[8], 1.5F);
}

TEST(Verify, BudgetsBeatFixedDepthsUnderLoad) {
  const FleetResult off = with(SpeculationMode::kOff, 150), five = with(SpeculationMode::kFixed, 150),
                    budget = with(SpeculationMode::kDynamic, 150);
  for (const FleetResult* r : {&off, &five, &budget}) {
    ASSERT_EQ(r->broken, "");
    EXPECT_NEAR(r->eta, r->eta_time * r->eta_step * r->eta_mix, 1e-9);
  }
  EXPECT_NEAR(off.tokens_per_step, 1, 1e-6);
  EXPECT_EQ(off.drafts_per_step, 0);
  EXPECT_NEAR(five.drafts_per_step, 5, 1e-6);
  EXPECT_NEAR(five.tokens_per_step, 3.29, 0.1);
  EXPECT_LT(budget.drafts_per_step, 4.9);
  EXPECT_GT(budget.budgets, 20);
  EXPECT_LT(five.tpot_ns.mean(), 0.6 * off.tpot_ns.mean());
  EXPECT_LT(budget.tpot_ns.mean(), 1.06 * five.tpot_ns.mean());
  // More load, fewer drafts for each, and that is faster than five for everybody.
  const FleetResult crowd_five = with(SpeculationMode::kFixed, 500),
                    crowd = with(SpeculationMode::kDynamic, 500);
  EXPECT_LT(crowd.drafts_per_step, budget.drafts_per_step - 0.5);
  EXPECT_LT(crowd.tpot_ns.mean(), 0.9 * crowd_five.tpot_ns.mean());
}

// How long a request decodes follows from what it is expected to gain per step.
TEST(Verify, RequestsEndWhenTheirTokensAreThere) {
  std::string csv = "timestamp,input_length,output_length\n";
  for (int i = 0; i < 400; ++i) csv += fmt::format("{},300,1001\n", 20 * i);
  FleetConfig c = small_fleet(1);
  c.decode_groups = 1;
  c.moe_lb = 1;
  c.warmup_s = 0;
  c.measure_s = 30;
  const FleetResult r = run(c, parse_trace(csv, "t").value());
  ASSERT_EQ(r.broken, "");
  EXPECT_EQ(r.completed, 400);
  EXPECT_EQ(r.output_tokens, 400 * 1001);
  // Requests of all kinds alike: the mean over requests of 1 / pace is larger than that of the mean pace.
  const double step_ms =
      1e3 * 1.02 * c.decode.step_ns(r.mean_requests * (1 + r.drafts_per_step), r.mean_tokens) * 1e-9;
  EXPECT_GT(r.tpot_ns.mean() * 1e-6, step_ms / r.tokens_per_step * 0.95);
  EXPECT_LT(r.tpot_ns.quantile(0.05), 0.75 * r.tpot_ns.quantile(0.95));  // easy ones are faster
}

}  // namespace
}  // namespace deepinfer::sim
