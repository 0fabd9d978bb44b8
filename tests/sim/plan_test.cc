// The plan is the least fleet that meets the objectives, and says so when there is none.
#include "sim/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace deepinfer::sim {
namespace {

PlanConfig small_plan() {
  PlanConfig p;
  p.fleet.warmup_s = 2;
  p.fleet.measure_s = 4;
  p.fleet.prefill_ranks = 1;
  p.fleet.decode_ranks = 4;
  p.fleet.moe_lb = 1.08;
  p.fleet.ttft_slo_s = 2.5;
  p.fleet.tpot_slo_ms = 12;
  p.workload.mix = {agent_mix()};
  p.workload.requests_per_s = 200;
  p.workload.sessions = 40;
  p.most_prefill = 32;
  p.most_decode = 8;
  return p;
}

TEST(Plan, LeastFleetThatMeetsTheObjectives) {
  PlanConfig config = small_plan();
  config.ttls_s = {300, 259200};
  const Plan plan = make_plan(config);
  ASSERT_EQ(plan.choices.size(), 2u) << plan.problem;
  for (const PlanPoint& best : plan.choices) {
    EXPECT_TRUE(best.meets);
    EXPECT_LE(best.ttft_s, config.fleet.ttft_slo_s);
    EXPECT_GE(best.goodput, config.goodput);
    EXPECT_GT(best.prefill_engines, 1);
    bool one_less_fails = false;  // the point beside it was looked at and does not meet them
    std::set<std::tuple<int, int, double, double>> seen;  // nothing is looked at twice
    for (const PlanPoint& p : plan.looked)
      EXPECT_TRUE(seen.insert({p.prefill_engines, p.decode_groups, p.ttl_s, p.budget_ms}).second);
    for (const PlanPoint& p : plan.looked) {
      one_less_fails |= p.ttl_s == best.ttl_s && p.decode_groups == best.decode_groups &&
                        p.prefill_engines == best.prefill_engines - 1 && !p.meets;
    }
    EXPECT_TRUE(one_less_fails);
  }
  EXPECT_GT(plan.choices[1].hit_rate, plan.choices[0].hit_rate);  // a longer store
  EXPECT_LE(plan.choices[1].prefill_engines, plan.choices[0].prefill_engines);
  EXPECT_EQ(plan_json(plan).dump(), plan_json(make_plan(config)).dump());
  EXPECT_EQ(plan_json(plan)["best"]["prefill_engines"], plan.best.prefill_engines);
  EXPECT_NE(plan_html(plan).find("<svg"), std::string::npos);
  EXPECT_NE(plan_text(plan).find("prefill engines and"), std::string::npos);
}

TEST(Plan, SaysWhyThereIsNone) {
  PlanConfig config = small_plan();
  config.fleet.ttft_slo_s = 1e-4;
  config.most_prefill = 2;
  config.most_decode = 2;
  const Plan plan = make_plan(config);
  EXPECT_TRUE(plan.choices.empty());
  EXPECT_NE(plan.problem.find("relax an objective"), std::string::npos);
  EXPECT_FALSE(plan_json(plan)["found"]);
  EXPECT_NE(plan_text(plan).find("no plan"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::sim
