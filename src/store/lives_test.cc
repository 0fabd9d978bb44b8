// Lives of blocks and of windows: by kind of traffic, by wish, raised by use, over when they are over.
#include <atomic>
#include <thread>

#include "store/test_support.h"

namespace deepinfer::store {
namespace {

constexpr int64_t kBytes = 5000;

std::unique_ptr<DirectoryStore> open_or_die(const DirectoryOptions& o) {
  Result<std::unique_ptr<DirectoryStore>> s = DirectoryStore::open(o);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(s).value() : nullptr;
}

TEST(DirectoryStore, LivesEndAndAreRaised) {
  TestDirectory d;
  int64_t wall = 1'000'000, mono = 0;
  auto pass = [&](int64_t seconds) {
    wall += seconds;
    mono += seconds * 1'000'000'000;
  };
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall; };
  o.monotonic = [&] { return mono; };
  constexpr int64_t kDay = 86400;
  {
    auto s = open_or_die(o);
    for (uint64_t c : {1, 2, 3}) {
      ObjectMeta m = test_meta(c, 0, kBytes);
      m.agent = c == 1;
      m.ttl.block_s = c == 3 ? kDay : 0;
      ASSERT_TRUE(put_one(s.get(), m, test_payload(m.key, m.kind, kBytes)).ok());
    }
    pass(2 * kDay);
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 1, 1, kBytes), 1u);
    EXPECT_EQ(read_chain(s.get(), 2, 1, kBytes), 1u);
    EXPECT_EQ(read_chain(s.get(), 3, 1, kBytes), 0u);
    s->touch(test_chain(1, 1), true, {});  // used: three more days from now
    s->flush();
    pass(2 * kDay);
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 1, 1, kBytes), 1u);
  }
  {
    auto s = open_or_die(o);  // the raised life survives a restart
    EXPECT_EQ(read_chain(s.get(), 1, 1, kBytes), 1u);
    pass(2 * kDay);
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 1, 1, kBytes), 0u);
    EXPECT_EQ(read_chain(s.get(), 2, 1, kBytes), 1u);
    pass(2 * kDay);
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 2, 1, kBytes), 0u);
  }
}

// A window goes before its blocks when the rules say so.
TEST(DirectoryStore, WindowsHaveLivesOfTheirOwn) {
  TestDirectory d;
  int64_t wall = 1'000'000, mono = 0;
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall; };
  o.monotonic = [&] { return mono; };
  o.retention.window_chat_ttl_s = 600;
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 3, kBytes).ok());
  ObjectMeta w = test_meta(1, 1, 9000, Kind::kWindow);
  auto windows = [&] {
    Match m = s->match(test_chain(1, 3));
    s->release(m.lease);
    EXPECT_EQ(m.blocks, 3);
    return m.windows.size();
  };
  auto pass = [&](int64_t seconds) {
    wall += seconds;
    mono += seconds * 1'000'000'000;
    s->keep_house();
  };
  ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 9000)).ok());
  pass(500);
  EXPECT_EQ(windows(), 1u);
  s->touch(test_chain(1, 3), false, {});
  pass(500);
  EXPECT_EQ(windows(), 1u);  // used: 600 seconds more
  s->touch(test_chain(1, 3), false, {0, 3000});
  pass(2000);
  EXPECT_EQ(windows(), 1u);  // a wish for windows
  pass(1100);
  EXPECT_EQ(windows(), 0u);
  ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 9000)).ok());
  EXPECT_EQ(windows(), 1u);
}

// What is over and was not swept yet does not keep the next writer from writing it again.
TEST(DirectoryStore, OverButNotSwept) {
  TestDirectory d;
  std::atomic<int64_t> wall = 1'000'000, mono = 1;
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall.load(); };
  o.monotonic = [&] { return mono.load(); };
  o.refresh_ns = 1'000'000;        // looks at the clock
  o.heartbeat_ns = INT64_MAX / 2;  // and never sweeps
  o.retention.window_chat_ttl_s = 600;
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 2, kBytes).ok());
  ObjectMeta w = test_meta(1, 1, 9000, Kind::kWindow);
  ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 9000)).ok());
  EXPECT_FALSE(s->begin({w})->wanted[0]);
  uint32_t begun = s->now_s();
  mono += 700'000'000'000;
  wall += 700;
  while (s->now_s() < begun + 700) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(s->gauges().windows, 1);
  EXPECT_FALSE(s->contains(w.kind, w.key));
  // Its block, used after it, keeps its own life.
  s->touch(test_chain(1, 2), false, {});
  ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 9000)).ok());
  EXPECT_TRUE(s->contains(w.kind, w.key));
  EXPECT_EQ(s->counters().expired_objects, 1);
  EXPECT_EQ(read_chain(s.get(), 1, 2, kBytes), 2u);
}

}  // namespace
}  // namespace deepinfer::store
