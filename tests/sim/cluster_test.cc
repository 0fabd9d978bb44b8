// The whole cluster of reading A: its token mix, its share of perfectly balanced, and that a run grows with
// its events and with nothing else.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/economics.h"
#include "sim/fleet.h"

namespace deepinfer::sim {
namespace {

TEST(Cluster, ReadingAAndAboutFourFifthsOfBalanced) {
  DayConfig day = cluster_day(1, 3, 5);
  const FleetConfig& f = day.fleet;
  EXPECT_NEAR(f.prefill_engines * f.prefill_ranks + f.decode_groups * f.decode_ranks, 1721, 1);
  const DayResult joint = run_day(day);
  const FleetResult& r = joint.total;
  ASSERT_EQ(r.broken, "");
  EXPECT_EQ(r.refused, 0);
  const FactoryInput in = reading_a();
  const double per_day = 86400 / r.measured_s;
  const double output = joint.total.output_per_s * 86400;
  EXPECT_NEAR(static_cast<double>(r.input_tokens) * per_day + output, in.tokens_per_day,
              0.03 * in.tokens_per_day);
  EXPECT_NEAR(static_cast<double>(r.hit_tokens) / static_cast<double>(r.input_tokens), factory(in).hit_rate,
              0.005);
  // The mix has the share of outputs of the reading, and what is generated is what is asked for: all but each
  // request's first token, which its prompt gives, within what chance brings more or fewer of them.
  const Workload mix(day.workload, 1, 0);
  EXPECT_NEAR(mix.mean_output() / (mix.mean_input() + mix.mean_output()), 0.005, 0.00003);
  const double asked = static_cast<double>(r.arrived) / r.measured_s * (mix.mean_output() - 1);
  EXPECT_NEAR(r.output_per_s / asked, 1, 0.004);
  EXPECT_NEAR(output / (0.005 * in.tokens_per_day), 1, 0.01);
  EXPECT_GE(joint.eta.mean, 0.75);
  EXPECT_LE(joint.eta.mean, 0.85);
  day.fleet.decode_balancer.rule = policy::DecodeRule::kRoundRobin;
  const DayResult robin = run_day(day);
  // By less than before budgets: a rank with more requests verifies fewer drafts, so that steps stay alike.
  EXPECT_LT(robin.eta.mean, joint.eta.mean - 0.003);
  EXPECT_EQ(run_day(cluster_day(1, 1, 2)).total.log_hash, run_day(cluster_day(1, 1, 2)).total.log_hash);
}

}  // namespace
}  // namespace deepinfer::sim
