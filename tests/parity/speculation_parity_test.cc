// Speculation changes no answer: every depth, every pattern of acceptance, alone and in a batch, across a
// cache hit and a preemption; and the caches are what they would have been without it.
#include "speculation_fixture.h"

namespace deepinfer::parity {
namespace {

TEST(SpeculationParity, EveryDepthAndModeAtEveryBatchSize) {
  auto requests = mixed();
  Server off(kModel, small(policy::SpeculationMode::kOff));
  auto want = answers_of(&off, requests, 1);
  EXPECT_EQ(off.engine->stats().verified_tokens, 0);
  for (size_t at_a_time : {size_t{1}, size_t{5}, size_t{16}}) {
    for (int depth = 0; depth <= 5; ++depth) {
      Server s(kModel, small(policy::SpeculationMode::kFixed, depth));
      EXPECT_EQ(answers_of(&s, requests, at_a_time), want) << "depth " << depth << " batch " << at_a_time;
      EXPECT_EQ(s.engine->stats().verified_tokens > 0, depth > 0);
      s.expect_clean();
    }
    for (auto mode : {policy::SpeculationMode::kDynamic, policy::SpeculationMode::kLane}) {
      Server s(kModel, small(mode));
      EXPECT_EQ(answers_of(&s, requests, at_a_time), want) << policy::name(mode) << " batch " << at_a_time;
      s.expect_clean();
    }
  }
}

// A measured curve lets the budget vary from step to step; answers stay.
TEST(SpeculationParity, MeasuredBudgets) {
  auto requests = mixed();
  Server off(kModel, small(policy::SpeculationMode::kOff));
  EngineConfig c = small(policy::SpeculationMode::kDynamic);
  c.calibrate_ns = 200'000'000;
  Server dynamic(kModel, c);
  EXPECT_EQ(answers_of(&dynamic, requests, 16), answers_of(&off, requests, 16));
  EngineStats s = dynamic.engine->stats();
  EXPECT_EQ(s.speculation.position.size(), 5u);
  dynamic.expect_clean();
}

// Nothing ever pays: a step in two tries, with three of sixteen requests, others each time.
TEST(SpeculationParity, TrialsOfAFew) {
  auto requests = mixed();
  Server off(kModel, small(policy::SpeculationMode::kOff));
  EngineConfig c = small(policy::SpeculationMode::kDynamic);
  c.calibrate_ns = 200'000'000;
  c.speculation.gain = c.speculation.return_gain = 1e6;
  c.speculation.trial_after = c.speculation.trial_most = 2;
  c.speculation.trial_requests = 3;
  Server tries(kModel, c);
  EXPECT_EQ(answers_of(&tries, requests, 16), answers_of(&off, requests, 16));
  EngineStats s = tries.engine->stats();
  EXPECT_GE(s.speculation.trials, 4);  // how many steps there are depends on how fast they are
  EXPECT_EQ(s.speculation.draft_passes, s.speculation.trials);
  EXPECT_LE(s.drafted_tokens, s.speculation.trials * 3 * 5);
  EXPECT_GT(s.verified_tokens, s.speculation.trials);
  tries.expect_clean();
}

// A second turn that hits what was decoded under speculation is the second turn of a run without.
TEST(SpeculationParity, AcrossACacheHitAndAPreemption) {
  for (double temperature : {0.0, 0.8}) {
    auto talk = [&](EngineConfig c, int64_t* hits, int64_t* preemptions) {
      c.exact_hits = true;
      Server s(kModel, c);
      std::vector<std::vector<int32_t>> said;
      EngineRequest first = request(60, 1, temperature, 40);
      said.push_back(s.run(first).ids);
      EngineRequest second = first;
      second.prompt.insert(second.prompt.end(), said[0].begin(), said[0].end());
      auto more = prompt(30, s.w.config.vocab_size, 9);
      second.prompt.insert(second.prompt.end(), more.begin(), more.end());
      const Answer& a = s.run(second);
      said.push_back(a.ids);
      *hits += a.usage.cached_tokens;
      // More at once than the pool holds.
      std::vector<RequestId> ids;
      for (int i = 0; i < 8; ++i) ids.push_back(s.submit(request(30 + i, 20 + i, temperature, 60)));
      EXPECT_TRUE(s.finish_all());
      for (RequestId id : ids) {
        said.push_back(s.answers[{id, 0}].ids);
        *preemptions += s.answers[{id, 0}].usage.preemptions;
      }
      s.expect_clean();
      return said;
    };
    int64_t hits = 0, preemptions = 0, ignored = 0;
    auto plain = small(policy::SpeculationMode::kOff), tight = small(policy::SpeculationMode::kFixed, 5);
    auto want = talk(plain, &ignored, &ignored);
    int window = weights(kModel).config.sliding_window;
    tight.pool_blocks = (60 + 40 + 30 + 40) / window + 12;
    EXPECT_EQ(talk(tight, &hits, &preemptions), want);
    EXPECT_GT(hits, 0);
    EXPECT_GT(preemptions, 0) << "the pool was not tight";
  }
}

// The ratio rule gives other tokens but the same distribution: the second token after a prompt, over many
// seeds.
TEST(SpeculationParity, RatioRuleKeepsTheDistribution) {
  auto counts = [&](EngineConfig c) {
    c.max_running = 64;
    Server s(kModel, c);
    std::map<std::pair<int32_t, int32_t>, int> seen;
    std::vector<RequestId> ids;
    for (int i = 0; i < 700; ++i) {
      EngineRequest r = request(20, 1, 0.7, 3);
      r.sampling.top_k = 3;
      r.sampling.seed = static_cast<uint64_t>(i) * 7919 + 1;
      ids.push_back(s.submit(r));
    }
    EXPECT_TRUE(s.finish_all());
    for (RequestId id : ids) ++seen[{s.answers[{id, 0}].ids[1], s.answers[{id, 0}].ids[2]}];
    EXPECT_EQ(s.engine->stats().verified_tokens > 0, c.speculation.mode != policy::SpeculationMode::kOff);
    return seen;
  };
  EngineConfig ratio = small(policy::SpeculationMode::kFixed, 3);
  ratio.acceptance = EngineConfig::Acceptance::kRatio;
  auto a = counts(small(policy::SpeculationMode::kOff)), b = counts(ratio);
  // Two samples of one distribution: sum (a - b)^2 / (a + b) is chi-square.
  double chi = 0;
  int freedom = -1;
  std::set<std::pair<int32_t, int32_t>> keys;
  for (const auto& [k, n] : a) keys.insert(k);
  for (const auto& [k, n] : b) keys.insert(k);
  for (const auto& k : keys) {
    double x = a[k], y = b[k];
    if (x + y < 10) continue;
    chi += (x - y) * (x - y) / (x + y);
    ++freedom;
  }
  ASSERT_GT(freedom, 2);
  EXPECT_LT(chi, freedom + 4 * std::sqrt(2.0 * freedom));
}

TEST(SpeculationParity, OwnGuessesNeedTheSharedRule) {
  ThreadPool pool(1);
  EngineConfig c = small(policy::SpeculationMode::kFixed, 3);
  c.acceptance = EngineConfig::Acceptance::kRatio;
  c.guesses = [](const std::vector<int32_t>&, std::vector<int32_t>*) {};
  EXPECT_EQ(make_engine(&weights(kModel), &pool, c, [] { return deepinfer::now_ns(); }).status().code(),
            Code::kInvalidConfig);
}

TEST(SpeculationParity, DepthsBeyondTheBlockAreRefused) {
  const ModelWeights& w = weights(kModel);
  ThreadPool pool(1);
  for (int depth : {6, 7}) {
    EngineConfig c = small(policy::SpeculationMode::kFixed, depth);
    auto made = make_engine(&w, &pool, c, [] { return deepinfer::now_ns(); });
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::kInvalidConfig);
    EXPECT_NE(made.status().message().find("0 to 5"), std::string::npos) << made.status().message();
    c = small(policy::SpeculationMode::kDynamic);
    c.drafts = depth;
    EXPECT_FALSE(make_engine(&w, &pool, c, [] { return deepinfer::now_ns(); }).ok());
  }
}

}  // namespace
}  // namespace deepinfer::parity
