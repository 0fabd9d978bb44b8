// The engine without a model keeps the contract of engine.h.
#include "engine/synthetic_engine.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

EngineRequest request(int64_t max_tokens, int choices = 1) {
  EngineRequest r;
  r.prompt = {1, 2, 3};
  r.max_tokens = max_tokens;
  r.choices = choices;
  return r;
}

// Everything until `finished` choices have ended.
std::vector<EngineEvent> collect(Engine& engine, int finished) {
  std::vector<EngineEvent> all;
  while (finished > 0) {
    for (EngineEvent& e : engine.poll(1'000'000'000)) {
      if (e.kind == EngineEvent::Kind::kFinished) --finished;
      all.push_back(std::move(e));
    }
  }
  return all;
}

TEST(SyntheticEngine, EachChoiceStartsCountsAndFinishesOnce) {
  SyntheticOptions o;
  o.script = {7, 8, 9};
  o.tokens_per_s = 2000;
  SyntheticEngine engine(o);
  auto id = engine.submit(request(5, 2));
  ASSERT_TRUE(id.ok());
  std::vector<EngineEvent> events = collect(engine, 2);
  for (int choice = 0; choice < 2; ++choice) {
    std::vector<int32_t> ids;
    std::string kinds;
    for (const EngineEvent& e : events) {
      if (e.choice != choice) continue;
      EXPECT_EQ(e.request, *id);
      kinds += e.kind == EngineEvent::Kind::kStarted ? 'S' : e.kind == EngineEvent::Kind::kTokens ? 't' : 'F';
      for (const TokenEvent& t : e.tokens) ids.push_back(t.id);
      if (e.kind == EngineEvent::Kind::kFinished) {
        EXPECT_EQ(e.finish, Finish::kLength);
        EXPECT_EQ(e.usage.output_tokens, 5);
        EXPECT_EQ(e.usage.prompt_tokens, 3);
      }
    }
    EXPECT_EQ(kinds, "StttttF");
    EXPECT_EQ(ids, (std::vector<int32_t>{7, 8, 9, 7, 8}));
  }
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_EQ(engine.stats().blocks_used, 0);
}

// Whoever waits for news gets the tokens between in one piece, and none of them late at the end.
TEST(SyntheticEngine, NewsWakesAndContinuationsDoNot) {
  SyntheticOptions o;
  o.script = {7};
  o.tokens_per_s = 1000;
  SyntheticEngine engine(o);
  ASSERT_TRUE(engine.submit(request(60)).ok());
  int polls = 0, firsts = 0;
  size_t tokens = 0;
  for (bool over = false; !over; ++polls) {
    ASSERT_LT(polls, 10);
    for (EngineEvent& e : engine.poll(60'000'000'000, Engine::Until::kNews)) {
      EXPECT_EQ(e.first, e.kind == EngineEvent::Kind::kTokens && tokens == 0);
      firsts += e.first ? 1 : 0;
      tokens += e.tokens.size();
      over = over || e.kind == EngineEvent::Kind::kFinished;
    }
  }
  EXPECT_LE(polls, 3) << "started, first token, end";
  EXPECT_EQ(firsts, 1);
  EXPECT_EQ(tokens, 60u);
  ASSERT_TRUE(engine.submit(request(10000)).ok());
  engine.poll(60'000'000'000, Engine::Until::kNews);
  for (size_t n = 0; n < 2;)
    n += engine.poll(50'000'000, Engine::Until::kNews).size();  // the time ends it too
}

TEST(SyntheticEngine, CancelDeadlineAndQueue) {
  SyntheticOptions o;
  o.script = {7};
  o.tokens_per_s = 1;
  o.first_token_ns = 60'000'000'000;
  o.max_running = 1;
  o.max_waiting = 1;
  SyntheticEngine engine(o);
  auto a = engine.submit(request(5));
  EngineRequest late = request(5);
  late.deadline_ns = engine.now_ns() + 5'000'000;
  auto b = engine.submit(late);
  ASSERT_TRUE(a.ok() && b.ok());
  while (engine.stats().running == 0) engine.poll(1'000'000);
  EXPECT_EQ(engine.submit(request(5)).status().code(), Code::kResourceExhausted);
  std::vector<EngineEvent> events = collect(engine, 1);
  EXPECT_EQ(events.back().finish, Finish::kDeadline);
  EXPECT_EQ(events.back().request, *b);
  engine.cancel(*a);
  events = collect(engine, 1);
  EXPECT_EQ(events.back().finish, Finish::kCancelled);
  EXPECT_EQ(engine.stats().running + engine.stats().waiting + engine.stats().blocks_used, 0);
}

TEST(SyntheticEngine, DrainRefusesNewWorkAndEndsTheRestAfterTheGrace) {
  SyntheticOptions o;
  o.script = {7};
  o.tokens_per_s = 100;
  SyntheticEngine engine(o);
  ASSERT_TRUE(engine.submit(request(1000)).ok());
  ASSERT_TRUE(engine.submit(request(2)).ok());
  engine.drain(200'000'000);
  EXPECT_EQ(engine.submit(request(1)).status().code(), Code::kUnavailable);
  int cancelled = 0, length = 0;
  for (const EngineEvent& e : collect(engine, 2)) {
    if (e.kind != EngineEvent::Kind::kFinished) continue;
    (e.finish == Finish::kCancelled ? cancelled : length) += 1;
  }
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(length, 1);
  EXPECT_TRUE(engine.drained());
}

TEST(SyntheticEngine, StalledMakesNoStep) {
  SyntheticOptions o;
  o.script = {7};
  o.tokens_per_s = 1000;
  SyntheticEngine engine(o);
  engine.stall(true);
  ASSERT_TRUE(engine.submit(request(3)).ok());
  EXPECT_TRUE(engine.poll(30'000'000).empty());
  engine.stall(false);
  EXPECT_EQ(collect(engine, 1).back().finish, Finish::kLength);
}

TEST(SyntheticEngine, RefusesWhatCannotRun) {
  SyntheticOptions o;
  o.script = {7};
  o.context_tokens = 10;
  SyntheticEngine engine(o);
  EXPECT_EQ(engine.submit(request(8)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(engine.submit(request(0)).status().code(), Code::kInvalidArgument);
  EngineRequest r = request(1);
  r.prompt = {1 << 30};
  EXPECT_EQ(engine.submit(r).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer
