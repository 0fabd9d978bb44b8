// Steps that begin before all layers of their prefix have come from the store: answers equal a cold run's bit
// for bit when the rest comes in time, and when it comes too late, damaged, not at all, or for nobody any
// more. Rows of others in such a step keep their results.
#include <fstream>
#include <thread>

#include "store/generation.h"
#include "store_node.h"

namespace deepinfer::parity {
namespace {

constexpr int64_t kMs = 1'000'000;

class StoreEarly : public testing::Test {
 protected:
  // Writes the prompt's prefix.
  void SetUp() override {
    want = alone(kConfig, q);
    EXPECT_EQ(Node(dir.path(), split()).run(q).ids, want);
  }
  std::function<void(EngineConfig*, DirectoryOptions*)> split(int64_t limit_bytes_per_s = 0) {
    return [limit_bytes_per_s](EngineConfig* c, DirectoryOptions* o) {
      c->store_split_bytes = 1;
      c->cost = {0, 0, 3'000'000'000, 0, 0, 0, 0};  // by prediction a step is long enough to begin early
      o->limit_bytes_per_s = limit_bytes_per_s;
      if (limit_bytes_per_s > 0) o->read_depth = 1;  // in the order of asking
    };
  }
  // A store that takes some 300 ms for the later layers: the machine may be busy with other tests.
  std::unique_ptr<Node> slow() { return std::make_unique<Node>(dir.path(), split(60'000)); }
  // Flips the last byte, which the last layers read, of the block of this number in the prefix.
  void damage(Node* n, uint32_t depth) {
    for (const store::ListedObject& x : n->disk->list(SIZE_MAX)) {
      if (x.entry.kind != store::Kind::kBlock || x.entry.depth != depth) continue;
      std::fstream f(dir.path() + "/" + store::generation_name(x.generation) + "/" +
                         store::segment_name(x.entry.segment),
                     std::ios::in | std::ios::out | std::ios::binary);
      int64_t at =
          int64_t{x.entry.page} * store::kPage + store::kRecordHeaderBytes + x.entry.payload_bytes - 1;
      f.seekg(at);
      char c = static_cast<char>(f.get() ^ 0x40);
      f.seekp(at);
      f.put(c);
    }
  }
  EngineRequest q = question(1);
  std::vector<int32_t> want;
  store::TestDirectory dir;
};

TEST(BlockSplits, AtTheLastSourceThatLeavesEnough) {
  CacheLayout l = make_cache_layout<float>(*builtin_config("v41-flash"), true);
  ASSERT_EQ(l.block_bytes, 113'920);
  auto at = [&](int64_t least) {
    BlockSplit s = split_block(l, least);
    return std::pair(s.bytes, s.sources);
  };
  EXPECT_EQ(at(40'960), std::pair(int64_t{68'352}, 3));
  EXPECT_EQ(at(45'568), std::pair(int64_t{68'352}, 3));
  EXPECT_EQ(at(45'569), std::pair(int64_t{0}, 0));  // either part would be smaller
  EXPECT_EQ(at(0), std::pair(int64_t{0}, 0));
}

TEST_F(StoreEarly, TheRestComesInTime) {
  auto n = slow();
  n->prefix->rest_ns = 3000 * kMs;
  const Answer& a = n->run(q);
  EXPECT_EQ(a.ids, want);
  EXPECT_GT(a.usage.store_tokens, 0);
  EXPECT_EQ(a.usage.store_tokens, a.usage.cached_tokens);
  EngineStats s = n->server->engine->stats();
  EXPECT_EQ(s.store_early_steps, 1);
  EXPECT_EQ(s.store_lost_steps, 0);
  EXPECT_EQ(s.store_short_loads, 0);
  EXPECT_GT(s.store_step_wait_ns, 10 * kMs);  // the step did begin before the end
  EXPECT_EQ(s.preemptions, 0);
  store::Counters c = n->disk->counters();
  EXPECT_EQ(c.split_fetches, 1);
  EXPECT_LT(c.first_layers_ns, c.split_fetch_ns);
  // From memory afterwards, blocks that came in two parts are like any others.
  EXPECT_EQ(n->run(q).ids, want);
}

// What is predicted to come too late is waited for outside, and others run meanwhile.
TEST_F(StoreEarly, NotWhenTheRestIsFarAway) {
  auto n = slow();
  n->prefix->rest_ns = 3'600'000 * kMs;
  EXPECT_EQ(n->run(q).ids, want);
  EngineStats s = n->server->engine->stats();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_EQ(s.store_early_steps, 0);
  EXPECT_EQ(s.store_short_loads, 0);
}

TEST_F(StoreEarly, TheRestComesTooLate) {
  auto n = slow();
  n->prefix->rest_ns = 0;  // a few milliseconds are waited
  EngineRequest other = request(prompt(20, vocab(), 7), 60, 0.7, 5);
  std::vector<int32_t> want_other = alone(kConfig, other);
  RequestId b = n->server->submit(other), a = n->server->submit(q);
  ASSERT_TRUE(n->server->finish_all());
  const Answer& answer = n->server->answers[{a, 0}];
  EXPECT_EQ(answer.ids, want);
  EXPECT_EQ((n->server->answers[{b, 0}].ids), want_other);
  EngineStats s = n->server->engine->stats();
  EXPECT_EQ(s.store_early_steps, 1);
  EXPECT_EQ(s.store_lost_steps, 1);
  EXPECT_EQ(s.store_short_loads, 1);
  EXPECT_LE(answer.usage.store_tokens, answer.usage.cached_tokens);
  n->disk->flush();
}

TEST_F(StoreEarly, TheRestIsDamaged) {
  for (uint32_t depth : {3u, 2u}) {
    auto n = slow();
    damage(n.get(), depth);
    n->prefix->rest_ns = 3000 * kMs;
    const Answer& a = n->run(q);
    EXPECT_EQ(a.ids, want) << depth;
    EXPECT_LE(a.usage.cached_tokens, int64_t{depth} * window());
    EngineStats s = n->server->engine->stats();
    EXPECT_EQ(s.store_early_steps, 1);
    EXPECT_EQ(s.store_lost_steps, 1);
    EXPECT_EQ(n->disk->counters().integrity_failures, 1);
  }
}

// Its client goes while its step waits; the engine goes while a step waits.
TEST_F(StoreEarly, NobodyWaitsAnyMore) {
  for (bool cancel : {true, false}) {
    auto n = slow();
    n->prefix->rest_ns = 3000 * kMs;
    RequestId id = n->server->submit(q);
    while (n->server->engine->stats().store_early_steps == 0) {
      n->server->poll(kMs);
      ASSERT_EQ(n->server->open, 1);
    }
    if (!cancel) {
      n->server->engine.reset();
      n->server.reset();
      n->prefix.reset();
      continue;
    }
    n->server->engine->cancel(id);
    ASSERT_TRUE(n->server->finish_all());
    EXPECT_EQ((n->server->answers[{id, 0}].finish), Finish::kCancelled);
    EXPECT_EQ(n->run(q).ids, want);
  }
}

}  // namespace
}  // namespace deepinfer::parity
