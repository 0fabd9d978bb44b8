// One simulated engine: the serving scheduler's own plans, replayed from the log, and figures that follow
// from the costs.
#include "sim/engine_sim.h"

#include <gtest/gtest.h>

namespace deepinfer::sim {
namespace {

EngineSimConfig small_engine() {
  EngineSimConfig c;
  policy::SchedulerConfig& s = c.scheduler;
  s.replay = {128, 6, 134};
  s.context_tokens = 131072;
  s.pool_blocks = 2000;
  s.snapshot_slots = 16;
  s.max_running = 32;
  s.cost = {0, 0, 20'000, 1'000'000, 0, 0, 0};
  return c;
}

Trace trace_of(const std::string& csv) {
  return parse_trace("timestamp,input_length,output_length,hash_ids\n" + csv, "t").value();
}

TEST(EngineSim, OneRequestTakesWhatItsStepsCost) {
  auto r = run_engine(small_engine(), trace_of("0,1000,11,\n"));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->broken, "");
  EXPECT_EQ(r->completed, 1);
  EXPECT_EQ(r->output_tokens, 11);
  // The prompt is one step of 1,000 rows; every further token is a step of one row.
  EXPECT_NEAR(r->ttft_ns.mean(), 21e6, 1);
  EXPECT_NEAR(r->tpot_ns.mean(), 1.02e6, 1);
  EXPECT_EQ(r->steps, 11);
}

TEST(EngineSim, SharedPrefixesHitAndPlansReplay) {
  EngineSimConfig c = small_engine();
  c.scheduler.pool_blocks = 120;  // tight: waiting and preemption
  std::string csv;
  for (int i = 0; i < 40; ++i) csv += fmt::format("{},2048,{},1 2 3 {}\n", 5 * i, 20 + 7 * (i % 9), 100 + i);
  auto a = run_engine(c, trace_of(csv)), b = run_engine(c, trace_of(csv));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->broken, "");
  EXPECT_EQ(a->completed, 40);
  EXPECT_GT(a->hit_tokens, 20 * 1280);
  EXPECT_EQ(a->plan_hash, b->plan_hash);
  c.tokens_per_step = 1;
  c.scheduler.interactive_budget_ns /= 2;
  EXPECT_NE(run_engine(c, trace_of(csv))->plan_hash, a->plan_hash);
}

TEST(EngineSim, WhatCanNeverRunEndsAndBadConfigurationsAreRefused) {
  auto r = run_engine(small_engine(), trace_of("0,200000,5,\n1,100,5,\n"));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->broken, "");
  EXPECT_EQ(r->ended, 1);
  EXPECT_EQ(r->completed, 1);
  EngineSimConfig bad = small_engine();
  bad.scheduler.replay.keep_tokens = 100;
  EXPECT_EQ(run_engine(bad, trace_of("0,1,1,\n")).status().code(), Code::kInvalidConfig);
}

}  // namespace
}  // namespace deepinfer::sim
