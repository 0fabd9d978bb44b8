// Answers do not depend on where a prefix came from: memory, a persistent store after a restart, a part of
// it, damaged, evicted between match and fetch, expired, somebody else's, of other weights, slow or gone.
// Every answer equals a cold run bit for bit (exact hits: stored windows only).
#include <filesystem>
#include <fstream>
#include <set>

#include "kernels/kernels.h"
#include "store/generation.h"
#include "store_node.h"

namespace deepinfer::parity {
namespace {

namespace fs = std::filesystem;
class StoreParity : public testing::TestWithParam<bool> {  // written late
 protected:
  void late(EngineConfig* c) { c->store_late = GetParam(); }
  std::function<void(EngineConfig*, DirectoryOptions*)> plain() {
    return [this](EngineConfig* c, DirectoryOptions*) { late(c); };
  }
  store::TestDirectory dir;
};
INSTANTIATE_TEST_SUITE_P(WrittenEarlyAndLate, StoreParity, testing::Bool());

TEST_P(StoreParity, RestartAndMemoryAndNextTurn) {
  EngineRequest q = question();
  std::vector<int32_t> want = alone(kConfig, q);
  EngineRequest next = next_turn(q, want);
  std::vector<int32_t> want_next = alone(kConfig, next);
  int64_t cap = (static_cast<int64_t>(q.prompt.size()) - window() - 1) / window() * window();
  {
    Node n(dir.path(), plain());
    EXPECT_EQ(n.run(q).ids, want);
    const Answer& again = n.run(q);  // from memory
    EXPECT_EQ(again.ids, want);
    EXPECT_GT(again.usage.cached_tokens, 0);
    EXPECT_EQ(again.usage.store_tokens, 0);
  }
  {
    Node n(dir.path(), plain());
    const Answer& a = n.run(q);
    EXPECT_EQ(a.ids, want);
    EXPECT_GE(a.usage.cached_tokens, cap - window());
    EXPECT_EQ(a.usage.store_tokens, a.usage.cached_tokens);
    EXPECT_FALSE(a.usage.replayed_window);
    EngineStats s = n.server->engine->stats();
    EXPECT_EQ(s.store_loads, 1);
    EXPECT_EQ(s.store_short_loads, 0);
    EXPECT_EQ(s.store_tokens, a.usage.store_tokens);
    EXPECT_EQ(s.store_windows, 1);
  }
  {
    // The conversation goes on after another restart: the answer itself is a stored prefix, up to its last
    // boundary, and starts at the window that was kept at its end.
    Node n(dir.path(), plain());
    const Answer& a = n.run(next);
    EXPECT_EQ(a.ids, want_next);
    int64_t known = static_cast<int64_t>(q.prompt.size() + want.size()) - 1;
    EXPECT_EQ(a.usage.store_tokens, known / window() * window());
  }
}

TEST_P(StoreParity, DamagedPartsAreComputed) {
  EngineRequest q = question(1);
  std::vector<int32_t> want = alone(kConfig, q);
  {
    EXPECT_EQ(Node(dir.path(), plain()).run(q).ids, want);
  }
  std::vector<fs::path> segments;
  for (const auto& e : fs::recursive_directory_iterator(dir.path())) {
    if (e.path().extension() == ".seg") segments.push_back(e.path());
  }
  ASSERT_EQ(segments.size(), 1u);
  int64_t size = static_cast<int64_t>(fs::file_size(segments[0]));
  for (int64_t at = 200; at < size; at += size / 7) {
    {
      std::fstream f(segments[0], std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(at / store::kPage * store::kPage + 140);
      f.put('\x5a');
      f.put('\x33');
      f.put('\x0f');
    }
    Node n(dir.path(), [](EngineConfig*, DirectoryOptions* o) { o->writable = false; });
    EXPECT_EQ(n.run(q).ids, want) << at;
  }
}

TEST_P(StoreParity, PartsAndEvictionsBetweenMatchAndFetch) {
  EngineRequest q = question(2);
  std::vector<int32_t> want = alone(kConfig, q);
  {
    EXPECT_EQ(Node(dir.path(), plain()).run(q).ids, want);
  }
  for (size_t lost = 0; lost < 5; ++lost) {
    // The block goes after the match, while it is leased; the next time it is not even offered.
    Node n(dir.path(), plain());
    bool took = false;
    n.prefix->before_load = [&](const StoreLoad& l) {
      took = lost < l.keys.size();
      if (took) n.disk->invalidate(store::Kind::kBlock, l.keys[lost], "test");
      n.disk->flush();
    };
    const Answer& a = n.run(q);
    EXPECT_EQ(a.ids, want) << lost;
    EXPECT_EQ(n.server->engine->stats().store_short_loads, took ? 1 : 0) << lost;
    EXPECT_TRUE(took || lost >= 4);
    if (!took) continue;
    EXPECT_LE(a.usage.store_tokens, static_cast<int64_t>(lost) * window());
  }
  // The window alone is lost.
  Node n(dir.path(), plain());
  n.prefix->before_load = [&](const StoreLoad& l) {
    if (l.window) n.disk->invalidate(store::Kind::kWindow, l.window_key, "test");
  };
  EXPECT_EQ(n.run(q).ids, want);
}

TEST_P(StoreParity, ExpiredOtherTenantOtherWeights) {
  EngineRequest q = question(3);
  std::vector<int32_t> want = alone(kConfig, q);
  int64_t wall = 1'000'000;
  auto clock = [&](EngineConfig* c, DirectoryOptions* o) {
    late(c);
    o->wall_s = [&] { return wall; };
  };
  {
    EXPECT_EQ(Node(dir.path(), clock).run(q).ids, want);
  }
  {
    Node n(dir.path(), clock);
    EngineRequest other = q;
    other.cache_scope = "tenant-b";
    const Answer& a = n.run(other);
    EXPECT_EQ(a.ids, want);
    EXPECT_EQ(a.usage.cached_tokens, 0);
  }
  {
    Node n(dir.path(), [&](EngineConfig* c, DirectoryOptions* o) {
      clock(c, o);
      c->weights_digest = "another revision";
    });
    const Answer& a = n.run(q);
    EXPECT_EQ(a.ids, want);
    EXPECT_EQ(a.usage.cached_tokens, 0);
  }
  {
    Node n(dir.path(), [&](EngineConfig* c, DirectoryOptions* o) {
      clock(c, o);
      c->tokenizer_digest = "another template";
    });
    EXPECT_EQ(n.run(q).usage.cached_tokens, 0);
  }
  wall += 7 * 86400 + 1;
  Node n(dir.path(), clock);
  const Answer& a = n.run(q);
  EXPECT_EQ(a.ids, want);
  EXPECT_EQ(a.usage.cached_tokens, 0);
}

// What a request asks for: nothing kept, or only for a while.
TEST_P(StoreParity, WishesOfARequest) {
  EngineRequest q = question(4);
  Node n(dir.path(), plain());
  q.store.no_write = true;
  n.run(q);
  EXPECT_EQ(n.disk->gauges().objects, 0);
  q.store.no_write = false;
  q.store.ttl_s = 50;
  q.sampling.seed = 5;
  n.server->engine->clear_cache();
  n.run(q);
  EXPECT_GT(n.disk->gauges().objects, 0);
  for (const store::ListedObject& o : n.disk->list(1000)) EXPECT_EQ(o.entry.expires_s - o.entry.used_s, 50u);
  // Windows apart; and no windows at all.
  auto lives = [&](int number, int64_t window_ttl_s, bool none) {
    std::set<std::pair<bool, uint32_t>> seen;
    EngineRequest other = question(number);
    other.store.ttl_s = 90;
    other.store.window_ttl_s = window_ttl_s;
    other.store.no_windows = none;
    n.disk->shrink(0);
    n.run(other);
    for (const store::ListedObject& o : n.disk->list(1000))
      seen.insert({o.entry.kind == store::Kind::kWindow, o.entry.expires_s - o.entry.used_s});
    return seen;
  };
  using Seen = std::set<std::pair<bool, uint32_t>>;
  EXPECT_EQ(lives(5, 20, false), (Seen{{false, 90}, {true, 20}}));
  EXPECT_EQ(lives(6, 0, true), (Seen{{false, 90}}));
}

// What was used last is in memory before the first request, bit for bit; nothing is asked of the store then.
TEST_P(StoreParity, WarmedUpBeforeTheStart) {
  EngineRequest q = question(7);
  std::vector<int32_t> want = alone(kConfig, q);
  EngineRequest next = next_turn(q, want);
  std::vector<int32_t> want_next = alone(kConfig, next);
  int64_t blocks = 0, windows = 0;
  {
    Node n(dir.path(), plain());
    EXPECT_EQ(n.run(q).ids, want);
    blocks = n.disk->gauges().blocks;
    windows = n.disk->gauges().windows;
  }
  Node n(dir.path(), [&](EngineConfig* c, DirectoryOptions*) {
    late(c);
    c->store_warm_ns = 60'000'000'000;
  });
  EngineStats before = n.server->engine->stats();
  EXPECT_EQ(before.store_warm_blocks, blocks);
  EXPECT_EQ(before.store_warm_windows, windows);
  const Answer& a = n.run(next);
  EXPECT_EQ(a.ids, want_next);
  int64_t known = static_cast<int64_t>(q.prompt.size() + want.size()) - 1;
  EXPECT_EQ(a.usage.cached_tokens, known / window() * window());
  EXPECT_EQ(a.usage.store_tokens, 0);
  EXPECT_EQ(n.server->engine->stats().store_loads, 0);
}

// The time for it is limited, and a damaged object is left out.
TEST(StoreParitySlow, WarmUpOfASlowAndDamagedStore) {
  store::TestDirectory dir;
  EngineRequest q = question(8);
  std::vector<int32_t> want = alone(kConfig, q);
  store::Key damaged;
  {
    Node n(dir.path());
    EXPECT_EQ(n.run(q).ids, want);
    store::ListedObject o = n.disk->list(1).at(0);
    damaged = o.entry.key;
    std::fstream f(
        dir.path() + "/" + store::generation_name(o.generation) + "/" + store::segment_name(o.entry.segment),
        std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(int64_t{o.entry.page} * store::kPage + 200);
    f.put('\x11').put('\x12').put('\x13');
  }
  {
    Node n(
        dir.path(),
        [](EngineConfig* c, DirectoryOptions* o) {
          o->limit_bytes_per_s = 100'000;
          o->writable = false;
          c->store_warm_ns = 5'000'000;
        },
        policy::RestoreRules{});
    EXPECT_LT(n.server->engine->stats().store_warm_blocks, n.disk->gauges().blocks);
    EXPECT_EQ(n.run(q).ids, want);
  }
  Node n(dir.path(), [&](EngineConfig* c, DirectoryOptions*) { c->store_warm_ns = 60'000'000'000; });
  EXPECT_FALSE(n.disk->contains(store::Kind::kBlock, damaged));
  EXPECT_EQ(n.run(q).ids, want);
}

// The arithmetic is bound in the keys: what another instruction level computed is not found.
TEST(StoreParityLevels, AnotherInstructionLevelFindsNothing) {
  std::vector<std::string> levels = instruction_levels();
  if (levels.size() < 2) GTEST_SKIP() << "this processor has one level only";
  store::TestDirectory dir;
  EngineRequest q = question(3);
  bool known = false;
  for (const std::string& level : {levels.front(), levels.back(), levels.front()}) {
    ASSERT_TRUE(set_instruction_level(level));
    store::TestDirectory empty;
    std::vector<int32_t> want = Node(empty.path()).run(q).ids;
    Node n(dir.path());
    const Answer& a = n.run(q);
    EXPECT_EQ(a.ids, want) << level;
    EXPECT_EQ(a.usage.store_tokens > 0, known && level == levels.front()) << level;
    known = true;
  }
}

// A store of 2 KB/s: the load is given up when its time is over, the answer is computed, and later requests
// do not ask again until it pays.
TEST(StoreParitySlow, GivenUpAndNotAskedAgain) {
  store::TestDirectory dir;
  EngineRequest q = question(5);
  std::vector<int32_t> want = alone(kConfig, q);
  {
    EXPECT_EQ(Node(dir.path()).run(q).ids, want);
  }
  policy::RestoreRules no_probe;
  no_probe.probe_every_ns = 3'600'000'000'000;
  Node n(
      dir.path(),
      [](EngineConfig* c, DirectoryOptions* o) {
        o->limit_bytes_per_s = 8000;
        o->writable = false;
        c->cost = {0, 0, 1'000'000, 0, 0, 0, 0};
      },
      no_probe);
  EXPECT_EQ(n.run(q).ids, want);
  EngineStats s = n.server->engine->stats();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_EQ(s.store_short_loads, 1);
  for (int i = 0; i < 3; ++i) {
    n.server->engine->clear_cache();
    EXPECT_EQ(n.run(q).ids, want);
  }
  s = n.server->engine->stats();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_EQ(s.store_declined, 3);
}

TEST(StoreParitySlow, CancelledWhileItLoads) {
  store::TestDirectory dir;
  EngineRequest q = question(6);
  std::vector<int32_t> want = alone(kConfig, q);
  {
    EXPECT_EQ(Node(dir.path()).run(q).ids, want);
  }
  Node n(dir.path(), [](EngineConfig*, DirectoryOptions* o) {
    o->limit_bytes_per_s = 200'000;
    o->writable = false;
  });
  // As if it had been measured to be worth waiting for.
  for (int i = 0; i < 20; ++i) n.prefix->measured(1000, 300'000'000);
  RequestId id = n.server->submit(q);
  n.server->poll(10'000'000);
  n.server->engine->cancel(id);
  ASSERT_TRUE(n.server->finish_all());
  EXPECT_EQ((n.server->answers[{id, 0}].finish), Finish::kCancelled);
  EXPECT_EQ(n.run(q).ids, want);
}

// Many at once, some from the store, some from memory, some cold, and preempted for want of blocks.
TEST(StoreParityCrowd, EverybodyGetsTheirOwn) {
  store::TestDirectory dir;
  std::vector<EngineRequest> all;
  std::vector<std::vector<int32_t>> want;
  for (int i = 0; i < 12; ++i) {
    all.push_back(request(prompt(3 * window() + 7 * i, vocab(), i % 5), window() + i, 0.6,
                          static_cast<uint64_t>(40 + i)));
    want.push_back(alone(kConfig, all.back()));
  }
  for (int round = 0; round < 3; ++round) {
    Node n(dir.path(), [&](EngineConfig* c, DirectoryOptions*) {
      c->pool_blocks = round == 1 ? 20 : 400;
      c->batch_budget_ns = c->interactive_budget_ns = 400'000'000;
    });
    std::vector<RequestId> ids;
    for (const EngineRequest& r : all) ids.push_back(n.server->submit(r));
    ASSERT_TRUE(n.server->finish_all());
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ((n.server->answers[{ids[i], 0}].ids), want[i]) << "round " << round << ", request " << i;
    EXPECT_EQ(n.server->engine->stats().store_tokens > 0, round > 0);
  }
}

}  // namespace
}  // namespace deepinfer::parity
