// The ratio rule keeps the target's distribution, for every verified length.
#include "engine/acceptance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace deepinfer {
namespace {

constexpr int kVocab = 16;

Distribution random_distribution(std::mt19937_64* random, bool holes) {
  Distribution d;
  double sum = 0;
  for (int32_t i = 0; i < kVocab; ++i) {
    double w = -std::log(1 - static_cast<double>((*random)() >> 11) * 0x1p-53);
    if (holes && (*random)() % 3 == 0) w = 0;
    if (w > 0) d.push_back({i, w});
    sum += w;
  }
  for (auto& [id, p] : d) p /= sum;
  return d;
}

double share_of(const Distribution& d, int32_t id) {
  for (const auto& [i, p] : d) {
    if (i == id) return p;
  }
  return 0;
}

// Two positions deep: target and draft of the second depend on the first token, as in a model.
struct Chain {
  Distribution first_target, first_draft;
  std::vector<Distribution> next_target, next_draft;
};

// The pair of tokens a run emits with `verified` drafts, speculation rounds chained as an engine does.
std::pair<int32_t, int32_t> run(const Chain& c, uint64_t seed, int verified) {
  auto target = [&](int position, int32_t before) -> const Distribution& {
    return position == 0 ? c.first_target : c.next_target[static_cast<size_t>(before)];
  };
  auto draft = [&](int position, int32_t before) -> const Distribution& {
    return position == 0 ? c.first_draft : c.next_draft[static_cast<size_t>(before)];
  };
  std::vector<int32_t> out;
  while (out.size() < 2) {
    auto from = static_cast<int>(out.size());
    std::vector<int32_t> drafts;
    for (int i = 0; i < verified && from + i < 2; ++i)
      drafts.push_back(
          draw_draft(draft(from + i, from + i == 0 ? 0 : (drafts.empty() ? out.back() : drafts.back())), seed,
                     from + i));
    bool rejected = false;
    for (size_t i = 0; i < drafts.size() && !rejected; ++i) {
      int position = from + static_cast<int>(i);
      int32_t before = out.empty() ? 0 : out.back();
      RatioVerdict v =
          accept_by_ratio(target(position, before), draft(position, before), drafts[i], seed, position);
      out.push_back(v.token);
      rejected = !v.accepted;
    }
    if (!rejected && out.size() < 2)
      out.push_back(draw_bonus(target(static_cast<int>(out.size()), out.empty() ? 0 : out.back()), seed,
                               static_cast<int64_t>(out.size())));
  }
  return {out[0], out[1]};
}

TEST(RatioAcceptance, KeepsTheTargetsDistributionForEveryLength) {
  std::mt19937_64 random(11);
  for (int verified = 0; verified <= 2; ++verified) {
    Chain c{random_distribution(&random, true), random_distribution(&random, true), {}, {}};
    for (int i = 0; i < kVocab; ++i) {
      c.next_target.push_back(random_distribution(&random, true));
      c.next_draft.push_back(random_distribution(&random, true));
    }
    const int kDraws = 300000;
    std::vector<double> seen(kVocab * kVocab);
    for (int i = 0; i < kDraws; ++i) {
      auto [a, b] = run(c, static_cast<uint64_t>(i) * 3 + static_cast<uint64_t>(verified), verified);
      seen[static_cast<size_t>(a * kVocab + b)] += 1;
    }
    double chi = 0;
    int freedom = -1;
    for (int a = 0; a < kVocab; ++a) {
      for (int b = 0; b < kVocab; ++b) {
        double expected =
            kDraws * share_of(c.first_target, a) * share_of(c.next_target[static_cast<size_t>(a)], b);
        double got = seen[static_cast<size_t>(a * kVocab + b)];
        if (expected == 0) {
          ASSERT_EQ(got, 0) << "a token the target cannot produce";
        } else if (expected > 5) {
          chi += (got - expected) * (got - expected) / expected;
          ++freedom;
        }
      }
    }
    // Mean f, deviation sqrt(2 f): four deviations are beyond p = 1e-4.
    EXPECT_LT(chi, freedom + 4 * std::sqrt(2.0 * freedom)) << verified;
  }
}

TEST(RatioAcceptance, WorkedExample) {
  Distribution target{{0, 0.7}, {1, 0.3}}, draft{{0, 0.5}, {1, 0.5}};
  int accepted = 0, a = 0;
  const int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    auto seed = static_cast<uint64_t>(i);
    RatioVerdict v = accept_by_ratio(target, draft, draw_draft(draft, seed, 5), seed, 5);
    accepted += v.accepted;
    a += v.token == 0;
  }
  EXPECT_NEAR(accepted / static_cast<double>(kDraws), 0.8, 0.005);
  EXPECT_NEAR(a / static_cast<double>(kDraws), 0.7, 0.005);
}

TEST(RatioAcceptance, OneHotAndImpossible) {
  Distribution greedy{{3, 1.0}}, draft{{2, 0.5}, {3, 0.5}};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_TRUE(accept_by_ratio(greedy, draft, 3, seed, 1).accepted);
    RatioVerdict v = accept_by_ratio(greedy, draft, 2, seed, 1);
    EXPECT_FALSE(v.accepted);
    EXPECT_EQ(v.token, 3);
    // A certain draft of a uniform target: kept as often as the target has it, never replaced by itself.
    Distribution target{{2, 0.25}, {3, 0.75}}, sure{{2, 1.0}};
    v = accept_by_ratio(target, sure, 2, seed, 1);
    EXPECT_EQ(v.token, v.accepted ? 2 : 3);
    // Nothing left over: the target decides.
    v = accept_by_ratio(target, target, 7, seed, 1);
    EXPECT_FALSE(v.accepted);
    EXPECT_TRUE(v.token == 2 || v.token == 3);
  }
}

TEST(Distributions, AreWhatDrawDrawsFrom) {
  std::mt19937_64 random(5);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = static_cast<float>(random() % 1000) / 200;
  logits[4] = -INFINITY;
  SamplingParams p;
  p.temperature = 0.8;
  p.top_p = 0.9;
  p.top_k = 10;
  std::vector<int32_t> banned{1, 2};
  DrawRules rules{banned, {}, {}};
  Distribution d = distribution(logits.data(), kVocab, p, rules);
  double sum = 0;
  for (const auto& [id, share] : d) sum += share;
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(share_of(d, 1) + share_of(d, 2) + share_of(d, 4), 0);
  std::vector<int> seen(kVocab);
  const int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    p.seed = static_cast<uint64_t>(i);
    ++seen[static_cast<size_t>(draw(logits.data(), kVocab, 3, p, rules))];
  }
  for (int i = 0; i < kVocab; ++i)
    EXPECT_NEAR(seen[static_cast<size_t>(i)] / static_cast<double>(kDraws), share_of(d, i), 0.008) << i;
  p.temperature = 0;
  d = distribution(logits.data(), kVocab, p, rules);
  ASSERT_EQ(d.size(), 1u);
  EXPECT_EQ(d[0].first, draw(logits.data(), kVocab, 3, p, rules));
}

}  // namespace
}  // namespace deepinfer
