// No token depends on its company: whatever runs beside a request, however it is cut into steps, preempted,
// begun from the cache or guessed ahead, its tokens are those of the plain generator, bit for bit.
#include "serving_fixture.h"

namespace deepinfer::parity {
namespace {

const std::string kConfig = PARITY_CONFIG;

int vocab() {
  return weights(kConfig).config.vocab_size;
}
int window() {
  return weights(kConfig).config.sliding_window;
}
// A few ids only, so that guesses of a model with random weights are right now and then.
std::vector<int32_t> all_but(int count) {
  std::vector<int32_t> banned;
  for (int32_t id = count; id < vocab(); ++id) banned.push_back(id);
  return banned;
}

std::vector<EngineRequest> mixed(int count) {
  std::vector<EngineRequest> out;
  for (int i = 0; i < count; ++i) {
    int n = std::max(3, std::min(prompt_length(kConfig), 160) - 9 * i);
    out.push_back(request(prompt(n, vocab(), i), 6 + i, i % 3 == 0 ? 0.0 : 0.4 + 0.1 * i,
                          static_cast<uint64_t>(100 + i)));
    if (i % 4 == 1) out.back().sampling.top_p = 0.9;
    if (i % 4 == 2) out.back().sampling.top_k = 20;
    if (i % 4 == 3) out.back().sampling.min_p = 0.05;
    if (i % 5 == 0) out.back().banned_ids = all_but(6);
  }
  return out;
}

TEST(ServingParity, AloneEqualsGenerator) {
  Server s(kConfig, test_config());
  for (double temperature : {0.0, 0.9}) {
    EngineRequest r = request(prompt(prompt_length(kConfig), vocab()), 24, temperature);
    std::vector<int32_t> want = alone(kConfig, r);
    const Answer& got = s.run(r);
    EXPECT_EQ(got.ids, want);
    EXPECT_EQ(got.finish, Finish::kLength);
    EXPECT_EQ(got.usage.output_tokens, 24);
  }
  s.expect_clean();
}

// Sixteen at once and shuffled, with one and with two steps in flight, with budgets from a row to everything.
TEST(ServingParity, InBatchShuffledAnyBudget) {
  std::vector<EngineRequest> all = mixed(16);
  std::vector<std::vector<int32_t>> want;
  for (const EngineRequest& r : all) want.push_back(alone(kConfig, r));
  struct Variant {
    int64_t budget_rows;
    int in_flight, stride;
  };
  for (Variant v : {Variant{1, 2, 1}, Variant{40, 2, 5}, Variant{40, 1, 3}, Variant{100000, 2, 7}}) {
    EngineConfig c = test_config();
    c.interactive_budget_ns = c.batch_budget_ns = v.budget_rows * 100'000;
    c.max_in_flight = v.in_flight;
    Server s(kConfig, c);
    std::vector<RequestId> ids(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      size_t k = (i * static_cast<size_t>(v.stride)) % all.size();
      ids[k] = s.submit(all[k]);
    }
    ASSERT_TRUE(s.finish_all());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ((s.answers[{ids[i], 0}].ids), want[i]) << "request " << i << ", budget " << v.budget_rows;
    }
    s.expect_clean();
  }
}

TEST(ServingParity, DraftsOnAndOff) {
  EngineRequest r = request(prompt(std::min(prompt_length(kConfig), 150), vocab()), 40, 0.8);
  r.banned_ids = all_but(4);
  std::vector<int32_t> want = alone(kConfig, r);
  int64_t accepted = 0;
  for (int drafts : {0, 1, 3, 5}) {
    EngineConfig c = test_config();
    c.drafts = drafts;
    Server s(kConfig, c);
    const Answer& a = s.run(r);
    EXPECT_EQ(a.ids, want) << drafts << " drafts";
    EXPECT_EQ(a.usage.drafted_tokens > 0, drafts > 0);
    accepted += a.usage.accepted_tokens;
    EngineRequest plain = r;
    plain.speculate = false;
    EXPECT_EQ(s.run(plain).usage.drafted_tokens, 0);
    s.expect_clean();
  }
  EXPECT_GT(accepted, 0) << "no guess was ever right: the test shows nothing";
}

TEST(ServingParity, Threads) {
  std::vector<EngineRequest> all = mixed(4);
  for (int threads : {1, 2, 3}) {
    Server s(kConfig, test_config(), threads);
    std::vector<RequestId> ids;
    for (const EngineRequest& r : all) ids.push_back(s.submit(r));
    ASSERT_TRUE(s.finish_all());
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ((s.answers[{ids[i], 0}].ids), alone(kConfig, all[i])) << threads << " threads";
  }
}

// The same prompt again starts at the stored window of its cap, and the next turn at the last boundary of the
// answer: what decode produced is reused like a prompt.
TEST(ServingParity, HitsWithAStoredWindow) {
  Server s(kConfig, test_config());
  int64_t n = prompt_length(kConfig), w = window();
  for (double temperature : {0.0, 0.9}) {
    EngineRequest first =
        request(prompt(static_cast<int>(n), vocab(), temperature > 0 ? 1 : 2), 3 * window(), temperature);
    std::vector<int32_t> want = alone(kConfig, first);
    EXPECT_EQ(s.run(first).usage.cached_tokens, 0);
    const Answer& again = s.run(first);
    EXPECT_EQ(again.ids, want);
    EXPECT_EQ(again.usage.cached_tokens, (n - s.engine->scheduler().replay.cap_tokens()) / w * w);
    EXPECT_FALSE(again.usage.replayed_window);

    EngineRequest next = first;
    next.max_tokens = 12;
    next.prompt.insert(next.prompt.end(), want.begin(), want.end());
    for (int i = 0; i < 2 * window(); ++i) next.prompt.push_back((3 + 11 * i) % (vocab() - 6));
    const Answer& turn = s.run(next);
    EXPECT_EQ(turn.ids, alone(kConfig, next));
    // The last token of the answer was never run, so its block counts only if it is full without it.
    EXPECT_EQ(turn.usage.cached_tokens, (n + 3 * w - 1) / w * w);
    EXPECT_FALSE(turn.usage.replayed_window);
  }
  EXPECT_EQ(s.engine->stats().replayed_hits, 0);
  s.expect_clean();
}

// Without stored windows a hit is a replay: told, counted, and avoidable.
TEST(ServingParity, ReplayedHitsAreToldAndAvoidable) {
  EngineConfig c = test_config();
  c.snapshot_slots = 0;
  Server s(kConfig, c);
  EngineRequest r = request(prompt(prompt_length(kConfig), vocab()), 8);
  std::vector<int32_t> want = alone(kConfig, r);
  EXPECT_EQ(s.run(r).ids, want);
  EngineRequest exact = r;
  exact.exact_hits = true;
  const Answer& avoided = s.run(exact);
  EXPECT_EQ(avoided.ids, want);
  EXPECT_EQ(avoided.usage.cached_tokens, 0);
  EXPECT_FALSE(avoided.usage.replayed_window);
  const Answer& replayed = s.run(r);
  EXPECT_TRUE(replayed.usage.replayed_window);
  EXPECT_GT(replayed.usage.cached_tokens, 0);
  EXPECT_EQ(replayed.ids.size(), 8u);
  EXPECT_EQ(s.engine->stats().replayed_hits, 1);
  EngineRequest apart = r;
  apart.use_cache = false;
  EXPECT_EQ(s.run(apart).ids, want);
  EXPECT_EQ(s.run(apart).usage.cached_tokens, 0);
  s.expect_clean();
}

// A pool that holds one and a half of them: they take turns, and none notices.
TEST(ServingParity, PreemptedAndResumed) {
  int64_t n = std::min(prompt_length(kConfig), 150), w = window();
  int64_t each = (n + 6 * w) / w + 1;
  for (double temperature : {0.0, 0.8}) {
    for (int64_t slots : {0, 32}) {
      EngineConfig c = test_config(each + each / 2);
      c.snapshot_slots = slots;
      c.exact_hits = true;
      Server s(kConfig, c);
      std::vector<EngineRequest> all;
      std::vector<RequestId> ids;
      for (int i = 0; i < 4; ++i) {
        all.push_back(request(prompt(static_cast<int>(n) / (1 + i % 2), vocab(), i), 6 * w, temperature,
                              static_cast<uint64_t>(i)));
        ids.push_back(s.submit(all.back()));
      }
      ASSERT_TRUE(s.finish_all());
      int64_t preemptions = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const Answer& a = s.answers[{ids[i], 0}];
        EXPECT_EQ(a.ids, alone(kConfig, all[i])) << "request " << i << " temperature " << temperature;
        preemptions += a.usage.preemptions;
      }
      EXPECT_GT(preemptions, 0) << "nobody was preempted: the test shows nothing";
      EXPECT_EQ(s.engine->stats().preemptions, preemptions);
      s.expect_clean();
    }
  }
}

// Answers to one prompt: those of as many requests with the choices' seeds, the prompt computed once.
TEST(ServingParity, ChoicesShareThePrompt) {
  Server s(kConfig, test_config());
  EngineRequest r = request(prompt(prompt_length(kConfig), vocab()), 12, 1.0, 99);
  r.choices = 4;
  RequestId id = s.submit(r);
  ASSERT_TRUE(s.finish_all());
  int64_t w = window(), cap = (prompt_length(kConfig) - s.engine->scheduler().replay.cap_tokens()) / w * w;
  for (int i = 0; i < r.choices; ++i) {
    const Answer& a = s.answers[{id, i}];
    EXPECT_EQ(a.ids, alone(kConfig, r, i)) << "choice " << i;
    EXPECT_EQ(a.usage.cached_tokens, i == 0 ? 0 : cap) << "choice " << i;
  }
  EXPECT_NE((s.answers[{id, 0}].ids), (s.answers[{id, 1}].ids));
  // Too short for a hit: each computes it.
  EngineRequest tiny = r;
  tiny.prompt.resize(5);
  RequestId short_id = s.submit(tiny);
  ASSERT_TRUE(s.finish_all());
  for (int i = 0; i < r.choices; ++i)
    EXPECT_EQ((s.answers[{short_id, i}].ids), alone(kConfig, tiny, i)) << "choice " << i;
  s.expect_clean();
}

// The vendor's keep of 140 rows (window + drafts + 7): the floor follows the hit, so only equal starts are
// equal, which is why it is not the default; the engine takes it and refuses less than the window needs.
TEST(ServingParity, KeepIsCheckedAtStart) {
  const ModelWeights& w = weights(kConfig);
  ThreadPool pool(1);
  EngineConfig c = test_config();
  c.keep_tokens = ring_slots(w.config) + 6;
  EXPECT_TRUE(make_engine(&w, &pool, c, [] { return int64_t{1}; }).ok());
  c.keep_tokens = ring_slots(w.config) - 1;
  auto refused = make_engine(&w, &pool, c, [] { return int64_t{1}; });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidConfig);
  EXPECT_NE(refused.status().message().find("keep"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::parity
