// The books of the serving engine, driven by hand: no thread, no model, no clock. Outcomes are made up.
#include "engine/serving_loop.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kMs = 1'000'000;

policy::SchedulerState scheduler(int64_t max_running = 8) {
  policy::SchedulerConfig c;
  c.replay = {16, 6, 22};
  c.drafts = 5;
  c.context_tokens = 1 << 20;
  c.pool_blocks = 10000;
  c.snapshot_slots = 8;
  c.max_running = max_running;
  c.cap_snapshots = true;
  c.cost = {0, 0, 100'000, 0, 0, 0, 0};  // 0.1 ms per row
  c.batch_budget_ns = 40 * kMs;
  c.interactive_budget_ns = 40 * kMs;
  return policy::make_scheduler(c).value();
}

Submission submission(uint64_t id, int64_t tokens, int64_t max_tokens = 8, int choices = 1) {
  auto r = std::make_shared<EngineRequest>();
  r->prompt.assign(static_cast<size_t>(tokens), 1);
  r->max_tokens = max_tokens;
  r->choices = choices;
  Submission s;
  s.id = RequestId(id);
  for (int64_t i = 0; i < tokens / 16; ++i)
    s.keys.push_back(policy::BlockKey{{id, static_cast<uint64_t>(i), 0, 1}});
  s.request = std::move(r);
  return s;
}

// What the executor would answer: every row that decides gives one token.
StepOutcome outcome(const StepOrder& order, int64_t end_ns) {
  StepOutcome o;
  o.step = order.step;
  o.end_ns = end_ns;
  for (const policy::RowRun& run : order.runs) {
    RunOutcome x;
    x.result.seq = run.seq;
    x.result.new_tokens = run.yields ? 1 : 0;
    x.result.snapshot_taken = true;
    x.yielded = run.yields;
    if (run.yields) x.tokens.push_back({});
    o.runs.push_back(std::move(x));
  }
  return o;
}

std::vector<std::string> kinds(ServingLoop* loop) {
  std::vector<std::string> out;
  for (const EngineEvent& e : loop->take_events()) {
    const char* names[] = {"started", "tokens", "finished"};
    out.push_back(
        fmt::format("{}/{} {}", static_cast<uint64_t>(e.request), e.choice, names[static_cast<int>(e.kind)]));
    if (e.kind == EngineEvent::Kind::kFinished) out.back() += fmt::format(" {}", name(e.finish));
  }
  return out;
}

using Lines = std::vector<std::string>;

// A short request that comes while a long step is executed is in the very next one.
TEST(ServingLoop, DecidesLateInLongSteps) {
  for (bool late : {true, false}) {
    ServingLoop loop(scheduler(), late, {});
    loop.submit(submission(1, 100000), 0);
    auto first = loop.next_order(0);
    ASSERT_TRUE(first.has_value());
    ASSERT_EQ(first->runs.size(), 1u);
    auto early = loop.next_order(1 * kMs);
    EXPECT_EQ(early.has_value(), !late);
    if (!late) continue;
    EXPECT_GT(loop.next_wake_ns(1 * kMs), 20 * kMs);
    EXPECT_LT(loop.next_wake_ns(1 * kMs), 40 * kMs);
    Submission urgent = submission(3, 50);
    auto with_deadline = std::make_shared<EngineRequest>(*urgent.request);
    with_deadline->deadline_ns = 12 * kMs;
    urgent.request = with_deadline;
    loop.submit(urgent, 10 * kMs);
    EXPECT_GE(loop.next_wake_ns(13 * kMs), 20 * kMs) << "a deadline that has passed must not make it spin";
    loop.submit(submission(2, 50), 10 * kMs);
    EXPECT_FALSE(loop.next_order(10 * kMs).has_value());
    auto second = loop.next_order(loop.next_wake_ns(10 * kMs));
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->runs.size(), 2u);
    EXPECT_EQ(loop.in_flight(), 2);
    EXPECT_FALSE(loop.next_order(39 * kMs).has_value());
    loop.finish(outcome(*first, 40 * kMs), 40 * kMs);
    EXPECT_FALSE(loop.next_order(41 * kMs).has_value()) << "the second step has only begun";
  }
}

TEST(ServingLoop, ChoicesWaitForTheFirstPrompt) {
  ServingLoop loop(scheduler(), false, {});
  loop.submit(submission(1, 100, 8, 3), 0);
  EXPECT_EQ(loop.live_choices(), 3);
  auto first = loop.next_order(0);
  ASSERT_EQ(first->admit.size(), 1u);
  loop.finish(outcome(*first, 1), 1);
  auto second = loop.next_order(1);
  ASSERT_EQ(second->admit.size(), 2u);
  EXPECT_EQ(second->admit[0].blocks.size(), 4u) << "(100 - 22) / 16 blocks of the first one's prompt";
  EXPECT_EQ(kinds(&loop), (Lines{"1/0 started", "1/0 tokens", "1/1 started", "1/2 started"}));
  loop.cancel_choice(RequestId(1), 1, 2);
  EXPECT_EQ(kinds(&loop), (Lines{"1/1 finished cancelled"}));
  // Its step is in flight: its result is nobody's.
  loop.finish(outcome(*second, 3), 3);
  EXPECT_EQ(kinds(&loop), (Lines{"1/0 tokens", "1/2 tokens"}));
  EXPECT_EQ(loop.stats().wasted_tokens, 1);
  loop.cancel(RequestId(1), 4);
  EXPECT_EQ(kinds(&loop), (Lines{"1/2 finished cancelled", "1/0 finished cancelled"}));
  EXPECT_EQ(loop.live_choices(), 0);
  auto last = loop.next_order(5);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(raw(last->step), 0);
  EXPECT_EQ(last->forget.size(), 3u);
  EXPECT_EQ(loop.stats().blocks_used, 0);
}

TEST(ServingLoop, CancelledWithChoicesHeldBack) {
  ServingLoop loop(scheduler(), false, {});
  loop.submit(submission(1, 100, 8, 3), 0);
  loop.cancel(RequestId(1), 1);
  EXPECT_EQ(kinds(&loop),
            (Lines{"1/2 finished cancelled", "1/1 finished cancelled", "1/0 finished cancelled"}));
  EXPECT_EQ(loop.live_choices(), 0);
  EXPECT_EQ(loop.stats().waiting, 0);
}

TEST(ServingLoop, EndOfTheFirstLetsTheOthersIn) {
  ServingLoop loop(scheduler(), false, {});
  loop.submit(submission(1, 100, 8, 2), 0);
  auto first = loop.next_order(0);
  StepOutcome failed = outcome(*first, 1);
  failed.runs[0].result = {first->runs[0].seq, 0, true, true, false, false, {}};
  failed.runs[0].tokens.clear();
  failed.runs[0].finish = Finish::kError;
  failed.runs[0].status = Status(Code::kInvalidData, "no");
  loop.finish(std::move(failed), 1);
  EXPECT_EQ(loop.live_choices(), 1);
  auto second = loop.next_order(2);
  ASSERT_EQ(second->admit.size(), 1u);
  EXPECT_TRUE(second->admit[0].blocks.empty()) << "nothing of a failed step is stored";
  EXPECT_EQ(loop.stats().failed, 1);
}

TEST(ServingLoop, DrainCancelsWhenPatienceEnds) {
  ServingLoop loop(scheduler(1), false, {});
  loop.submit(submission(1, 10, 1000), 0);
  loop.submit(submission(2, 10, 1000), 0);
  loop.drain(50 * kMs);
  EXPECT_LE(loop.next_wake_ns(0), 50 * kMs);
  auto order = loop.next_order(0);
  loop.finish(outcome(*order, 1), 1);
  EXPECT_EQ(kinds(&loop), (Lines{"1/0 started", "1/0 tokens"}));
  loop.next_order(50 * kMs);
  EXPECT_EQ(kinds(&loop), (Lines{"1/0 finished cancelled", "2/0 finished cancelled"}));
  EXPECT_TRUE(loop.stats().draining);
}

TEST(ServingLoop, PreemptedKeepsItsPlaceAndItsTokens) {
  policy::SchedulerState s = scheduler();
  policy::SchedulerConfig c = s.config;
  c.pool_blocks = 13;
  ServingLoop loop(policy::make_scheduler(c).value(), false, {});
  loop.submit(submission(1, 80, 60), 0);
  loop.submit(submission(2, 80, 60), 0);
  int64_t suspended = 0, resumed = 0;
  for (int64_t t = 1; t < 400 && loop.live_choices() > 0; ++t) {
    auto order = loop.next_order(t);
    if (!order.has_value()) continue;
    suspended += static_cast<int64_t>(order->suspend.size());
    for (const AdmitOrder& a : order->admit) resumed += a.fresh == nullptr ? 1 : 0;
    if (raw(order->step) == 0) continue;
    StepOutcome o = outcome(*order, t);
    for (size_t i = 0; i < order->runs.size(); ++i) {
      // The executor would end them at max_tokens.
      o.runs[i].result.finished =
          order->runs[i].yields && order->runs[i].begin + order->runs[i].rows - order->runs[i].drafts >= 139;
      o.runs[i].finish = Finish::kLength;
    }
    loop.finish(std::move(o), t);
  }
  EXPECT_EQ(loop.live_choices(), 0);
  EXPECT_GT(suspended, 0);
  EXPECT_EQ(suspended, resumed);
  int64_t tokens = 0;
  for (const EngineEvent& e : loop.take_events()) tokens += static_cast<int64_t>(e.tokens.size());
  EXPECT_EQ(tokens, 120);
  EXPECT_EQ(loop.stats().blocks_used, 0);
}

}  // namespace
}  // namespace deepinfer
