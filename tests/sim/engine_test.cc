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

// Steps of 21 ms and requests that arrive while the next step is planned already, or not yet.
TEST(EngineSim, StepsArePlannedAheadAsTheServerDoes) {
  EngineSimConfig c = small_engine();
  c.record_plans = c.record_requests = true;
  c.scheduler.cost = {0, 0, 0, 20'000'000, 0, 0, 0};  // every step 20 ms
  const Trace early = trace_of("0,100,50,\n102,100,2,\n"), late = trace_of("0,100,50,\n117,100,2,\n");
  // Long steps: the next is planned when three quarters are over, at 115 ms.
  auto a = run_engine(c, early), b = run_engine(c, late);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NEAR(static_cast<double>(a->times[0].first_token_ns), 140e6, 10);  // in the step from 120 ms
  EXPECT_NEAR(static_cast<double>(b->times[0].first_token_ns), 160e6, 10);  // in the one after
  // With one step at a time both are in the next.
  c.scheduler.max_in_flight = 1;
  auto d = run_engine(c, late);
  ASSERT_TRUE(d.ok());
  EXPECT_NEAR(static_cast<double>(d->times[0].first_token_ns), 140e6, 10);
  EXPECT_EQ(a->broken + b->broken + d->broken, "");
}

// The scheduler believes a row costs 20 us and it costs 60: steps take three times the budget until it has
// seen three of them, then as long as they should.
TEST(EngineSim, TheSchedulerLearnsWhatStepsTake) {
  EngineSimConfig c = small_engine();
  c.scheduler.batch_budget_ns = c.scheduler.interactive_budget_ns = 40'000'000;
  c.scheduler.max_in_flight = 1;
  c.cost = policy::CostModel{0, 0, 60'000, 1'000'000, 0, 0, 0};
  auto r = run_engine(c, trace_of("0,40000,2,\n"));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->broken, "");
  EXPECT_EQ(r->completed, 1);
  const double most = 1e6 + 60'000 * 1920;  // what fits 39 ms at 20 us a row, in whole blocks
  EXPECT_NEAR(r->step_ns.quantile(1), most, 0.02 * most);
  // Then four blocks of the five that would fit 40 ms: the floor of a step is taken to be slower, too.
  EXPECT_NEAR(r->step_ns.quantile(0.5), 1e6 + 60'000 * 512, 0.02 * 40e6);
  EXPECT_NEAR(r->busy_ns, 60'000 * 40'001.0 + 1e6 * static_cast<double>(r->steps), 1e3);
}

TEST(EngineSim, TurnsWaitForTheirAnswersAndHitWhatTheyLeft) {
  EngineSimConfig c = small_engine();
  c.record_requests = true;
  c.host_ns = 500'000;
  EngineWork w;
  w.arrivals = {{1'000'000, -1, 640, 257, 200'000}, {3'000'000, 0, 1280, 3, 200'000}};
  auto key = [](int64_t n) { return policy::BlockKey{{9, static_cast<uint64_t>(n), 0, 0}}; };
  w.prompt_keys = [&](size_t i) {
    std::vector<policy::BlockKey> keys;
    for (int64_t b = 0; b < w.arrivals[i].input_tokens / 128; ++b) keys.push_back(key(b));
    return keys;
  };
  w.output_key = [&](size_t, int64_t n) { return key(5 + n); };
  auto r = run_engine(c, w);
  ASSERT_TRUE(r.ok());
  ASSERT_EQ(r->broken, "");
  ASSERT_EQ(r->times.size(), 2u);
  EXPECT_EQ(r->times[1].arrived_ns, r->times[0].end_ns + 3'000'000);
  EXPECT_GE(r->hit_tokens, 640);  // its own prompt and what was generated of it
  // 1 ms of a step, 0.02 ms per row, half a millisecond between steps.
  EXPECT_NEAR(static_cast<double>(r->times[0].first_token_ns - r->times[0].arrived_ns), 14.5e6, 10);
  w.arrivals[0].after = 1;
  EXPECT_EQ(run_engine(c, w).status().code(), Code::kInvalidArgument);
}

TEST(EngineSim, AChangedLogIsNoticed) {
  policy::SchedulerConfig config = small_engine().scheduler;
  policy::SchedulerState state = policy::make_scheduler(config).value();
  std::vector<policy::Event> log;
  auto give = [&](policy::Event e) {
    policy::apply(&state, e);
    log.push_back(std::move(e));
  };
  for (uint64_t i = 1; i <= 3; ++i) {
    policy::Arrived a;
    a.seq = policy::SeqId{i};
    a.prompt_tokens = 300 * static_cast<int64_t>(i);
    a.max_new_tokens = 4;
    give(a);
  }
  give(policy::PlanAdopted{policy::decide(state, {0, 0}), 0});
  auto same = replay_log(config, log);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(*same, 1);
  std::get<policy::PlanAdopted>(log.back()).plan.runs.back().rows -= 1;
  EXPECT_EQ(replay_log(config, log).status().code(), Code::kInvalidData);
}

}  // namespace
}  // namespace deepinfer::sim
