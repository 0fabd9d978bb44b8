// Forced patterns of right and wrong guesses change no answer and leave the caches as they would have been.
#include "speculation_fixture.h"

namespace deepinfer::parity {
namespace {

// What was said without speculation, and guesses from it that are right exactly where `pattern` has a bit.
struct Oracle {
  std::vector<std::vector<int32_t>> full;  // prompt and answer
  int vocab = 0;
  int64_t asked = 0;

  void operator()(const std::vector<int32_t>& known, std::vector<int32_t>* guesses, unsigned pattern) {
    ++asked;
    for (const auto& f : full) {
      if (f.size() < known.size() || !std::equal(known.begin(), known.end(), f.begin())) continue;
      for (size_t i = 0; i < guesses->size(); ++i) {
        // The known tokens end with the last one said.
        int32_t right = known.size() + i < f.size() ? f[known.size() + i] : 0;
        (*guesses)[i] = (pattern >> i & 1) != 0 ? right : (right + 1) % vocab;
      }
      return;
    }
    ADD_FAILURE() << "guesses asked for something nobody said";
  }
};

// All 2^5 patterns of right and wrong guesses, at every depth, alone and sixteen at a time; a second turn
// afterwards reads what the rollbacks left in the cache.
TEST(SpeculationParity, EveryForcedPattern) {
  auto requests = mixed();
  auto follow_ups = [&](const std::vector<std::vector<int32_t>>& answers) {
    std::vector<EngineRequest> next = requests;
    for (size_t i = 0; i < next.size(); ++i) {
      next[i].prompt.insert(next[i].prompt.end(), answers[i].begin(), answers[i].end());
      auto more = prompt(40, weights(kModel).config.vocab_size, 7);
      next[i].prompt.insert(next[i].prompt.end(), more.begin(), more.end());
      next[i].max_tokens = 4;
      next[i].exact_hits = true;
    }
    return next;
  };
  Server off(kModel, small(policy::SpeculationMode::kOff));
  auto want = answers_of(&off, requests, 1);
  auto want_next = answers_of(&off, follow_ups(want), 1);
  Oracle oracle;
  oracle.vocab = weights(kModel).config.vocab_size;
  auto remember = [&](const std::vector<EngineRequest>& asked,
                      const std::vector<std::vector<int32_t>>& said) {
    for (size_t i = 0; i < asked.size(); ++i) {
      oracle.full.push_back(asked[i].prompt);
      oracle.full.back().insert(oracle.full.back().end(), said[i].begin(), said[i].end());
    }
  };
  remember(follow_ups(want), want_next);
  remember(requests, want);
  int64_t accepted = 0, verified = 0;
  for (unsigned pattern = 0; pattern < 32; ++pattern) {
    // Deeper bits of a pattern do not show at a smaller depth: those patterns would be repetitions.
    for (int depth = 1; depth <= 5; ++depth) {
      if (pattern >> depth != 0) continue;
      for (size_t at_a_time : {size_t{1}, size_t{16}}) {
        EngineConfig c = small(policy::SpeculationMode::kFixed, depth);
        c.guesses = [&](const std::vector<int32_t>& known, std::vector<int32_t>* g) {
          oracle(known, g, pattern);
        };
        Server s(kModel, c);
        ASSERT_EQ(answers_of(&s, requests, at_a_time), want) << "pattern " << pattern << " depth " << depth;
        ASSERT_EQ(answers_of(&s, follow_ups(want), at_a_time), want_next) << pattern << " depth " << depth;
        accepted += s.engine->stats().accepted_tokens;
        verified += s.engine->stats().verified_tokens;
        if (pattern == 0) {
          EXPECT_EQ(s.engine->stats().accepted_tokens, 0);
        }
        s.expect_clean();
      }
    }
  }
  EXPECT_GT(oracle.asked, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(verified, accepted);
}

// The same across preemptions: the pool holds a few of the sixteen at a time.
TEST(SpeculationParity, ForcedPatternsUnderPreemption) {
  auto requests = mixed();
  for (EngineRequest& r : requests) r.max_tokens = 40;
  Server off(kModel, small(policy::SpeculationMode::kOff));
  auto want = answers_of(&off, requests, 1);
  Oracle oracle;
  oracle.vocab = weights(kModel).config.vocab_size;
  for (size_t i = 0; i < requests.size(); ++i) {
    oracle.full.push_back(requests[i].prompt);
    oracle.full.back().insert(oracle.full.back().end(), want[i].begin(), want[i].end());
  }
  int64_t preemptions = 0;
  for (unsigned pattern : {0u, 31u, 5u, 21u, 30u}) {
    EngineConfig c = small(policy::SpeculationMode::kFixed, 5);
    c.pool_blocks = 24;
    c.guesses = [&](const std::vector<int32_t>& known, std::vector<int32_t>* g) {
      oracle(known, g, pattern);
    };
    Server s(kModel, c);
    EXPECT_EQ(answers_of(&s, requests, 16), want) << "pattern " << pattern;
    for (const auto& [id, answer] : s.answers) preemptions += answer.usage.preemptions;
    s.expect_clean();
  }
  EXPECT_GT(preemptions, 0) << "the pool was not tight";
}

}  // namespace
}  // namespace deepinfer::parity
