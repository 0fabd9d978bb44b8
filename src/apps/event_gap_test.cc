// What is held back, for how long, and that nothing is lost or reordered (apps/event_gap.h).
#include "apps/event_gap.h"

#include <gtest/gtest.h>

#include <map>

namespace deepinfer {
namespace {

using Kind = EngineEvent::Kind;

EngineEvent event(uint64_t request, Kind kind, std::vector<int32_t> ids = {}, int choice = 0) {
  EngineEvent e;
  e.kind = kind;
  e.request = RequestId{request};
  e.choice = choice;
  for (int32_t id : ids) {
    TokenEvent t;
    t.id = id;
    e.tokens.push_back(t);
  }
  return e;
}

std::vector<EngineEvent> list(EngineEvent e) {
  std::vector<EngineEvent> out;
  out.push_back(std::move(e));
  return out;
}

std::vector<int32_t> ids(const EngineEvent& e) {
  std::vector<int32_t> out;
  for (const TokenEvent& t : e.tokens) out.push_back(t.id);
  return out;
}

TEST(EventGap, BeginningsFirstTokensAndEndsGoAtOnce) {
  EventGap gap(10);
  EXPECT_EQ(gap.wait_ns(0), EventGap::kNothing);
  gap.add(list(event(1, Kind::kStarted)), 100);
  EXPECT_EQ(gap.wait_ns(100), 0);
  EXPECT_EQ(gap.take(100).size(), 1u);
  gap.add(list(event(1, Kind::kTokens, {5})), 101);
  EXPECT_EQ(gap.wait_ns(101), 0) << "a first token was held";
  gap.take(101);
  gap.add(list(event(1, Kind::kTokens, {6})), 103);
  EXPECT_EQ(gap.wait_ns(103), 8);
  gap.add(list(event(1, Kind::kFinished)), 104);
  EXPECT_EQ(gap.wait_ns(104), 0) << "an end was held";
  auto out = gap.take(104);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(ids(out[0]), (std::vector<int32_t>{6}));
  EXPECT_EQ(out[1].kind, Kind::kFinished);
}

TEST(EventGap, TokensOfOneChoiceBecomeOneEvent) {
  EventGap gap(10);
  for (int choice : {0, 1}) gap.add(list(event(1, Kind::kTokens, {1}, choice)), 0);
  gap.take(0);
  for (int step = 1; step <= 3; ++step) {
    for (int choice : {0, 1}) gap.add(list(event(1, Kind::kTokens, {step * 10 + choice}, choice)), step * 3);
  }
  EXPECT_EQ(gap.wait_ns(9), 1);
  EXPECT_EQ(gap.wait_ns(50), 0);
  auto out = gap.take(10);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(ids(out[0]), (std::vector<int32_t>{10, 20, 30}));
  EXPECT_EQ(ids(out[1]), (std::vector<int32_t>{11, 21, 31}));
}

TEST(EventGap, CalmOnlyWhileNoAnswerMayBeDue) {
  EventGap gap(10);
  for (uint64_t r : {1, 2}) gap.add(list(event(r, Kind::kTokens, {1})), 0);
  gap.take(0);
  EXPECT_EQ(gap.calm_until_ns(), 10);
  gap.add(list(event(1, Kind::kTokens, {2})), 12);
  gap.take(12);
  EXPECT_LE(gap.calm_until_ns(), 12) << "answer 2 is due at once";
  for (uint64_t r : {1, 2}) gap.add(list(event(r, Kind::kTokens, {3})), 22);
  gap.add(list(event(3, Kind::kStarted)), 22);
  gap.take(22);
  EXPECT_EQ(gap.calm_until_ns(), 32) << "an answer without tokens is news when it has some";
  gap.add(list(event(1, Kind::kTokens, {4})), 30);
  gap.add(list(event(1, Kind::kFinished)), 30);
  gap.take(30);
  EXPECT_LE(gap.calm_until_ns(), 30) << "answer 2 is due at 32 already";
  gap.add(list(event(2, Kind::kFinished)), 31);
  gap.add(list(event(3, Kind::kFinished)), 31);
  gap.take(31);
  EXPECT_EQ(gap.calm_until_ns(), 41) << "nobody is left";
}

TEST(EventGap, SlowAnswersAndNoGapAreNotTouched) {
  EventGap gap(10);
  gap.add(list(event(1, Kind::kTokens, {1})), 0);
  gap.take(0);
  gap.add(list(event(1, Kind::kTokens, {2})), 30);
  EXPECT_EQ(gap.wait_ns(30), 0);
  EventGap none(0);
  for (int64_t t = 0; t < 5; ++t) {
    none.add(list(event(1, Kind::kTokens, {1})), t);
    EXPECT_EQ(none.wait_ns(t), 0);
    EXPECT_EQ(none.take(t).size(), 1u);
  }
}

TEST(EventGap, OneThatIsDueTakesTheOthersWithIt) {
  EventGap gap(10);
  for (uint64_t r : {1, 2}) gap.add(list(event(r, Kind::kTokens, {1})), 0);
  gap.take(0);
  gap.add(list(event(1, Kind::kTokens, {2})), 4);
  EXPECT_EQ(gap.wait_ns(4), 6);
  gap.add(list(event(3, Kind::kStarted)), 5);
  EXPECT_EQ(gap.wait_ns(5), 0);
  EXPECT_EQ(gap.take(5).size(), 2u);
  gap.add(list(event(1, Kind::kTokens, {3})), 6);
  EXPECT_EQ(gap.wait_ns(6), 9) << "its tokens went out at 5";
}

TEST(EventGap, RandomLivesLoseAndReorderNothing) {
  uint64_t x = 7;
  auto next = [&x](uint64_t n) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    return (x >> 33) % n;
  };
  EventGap gap(20);
  std::map<uint64_t, int32_t> made, seen;
  int64_t now = 0, oldest = -1;
  for (int i = 0; i < 20000; ++i) {
    now += static_cast<int64_t>(next(8));
    const uint64_t r = 1 + next(5);
    const int64_t calm = gap.calm_until_ns();
    gap.add(list(event(r, Kind::kTokens, {made[r]++})), now);
    if (made[r] > 1) {
      EXPECT_GE(now + gap.wait_ns(now), calm) << "due although it was said that nothing would be";
    }
    if (oldest < 0) oldest = now;
    if (gap.wait_ns(now) > 0) continue;
    EXPECT_LE(now - oldest, 20 + 8);
    oldest = -1;
    for (const EngineEvent& e : gap.take(now)) {
      for (int32_t id : ids(e)) EXPECT_EQ(id, seen[static_cast<uint64_t>(e.request)]++);
    }
  }
  for (const EngineEvent& e : gap.take(now)) {
    for (int32_t id : ids(e)) EXPECT_EQ(id, seen[static_cast<uint64_t>(e.request)]++);
  }
  EXPECT_EQ(made, seen);
}

}  // namespace
}  // namespace deepinfer
