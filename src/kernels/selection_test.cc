// Selection against plain sorting, with ties, -inf and NaN; the router's worked numbers (model
// specification 12.5).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename A>
A order_value(A v) {
  return std::isnan(v) ? -std::numeric_limits<A>::infinity() : v;
}

// The definition: sort all indices by (score down, index up), drop -inf, keep k, sort by index.
template <typename A>
std::vector<int32_t> sorted_topk(const std::vector<A>& s, int64_t k) {
  std::vector<int32_t> order(s.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return order_value(s[static_cast<size_t>(a)]) > order_value(s[static_cast<size_t>(b)]);
  });
  std::vector<int32_t> out;
  for (int32_t i : order)
    if (static_cast<int64_t>(out.size()) < k &&
        order_value(s[static_cast<size_t>(i)]) > -std::numeric_limits<A>::infinity())
      out.push_back(i);
  std::sort(out.begin(), out.end());
  return out;
}

template <typename A>
std::vector<int32_t> topk(const std::vector<A>& s, int64_t k) {
  const int64_t n = static_cast<int64_t>(s.size());
  Guarded<A> scores(s);
  Guarded<int32_t> scratch(n), out(std::min(n, std::max<int64_t>(k, 0)));
  const int64_t count = select_topk(scores.data(), n, k, scratch.data(), out.data());
  return std::vector<int32_t>(out.data(), out.data() + count);
}

template <typename A>
void random_topk(uint32_t seed) {
  Random random(seed);
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t n = 1 + random.below(trial < 300 ? 80 : 3000), k = random.below(n + 3);
    const int64_t kinds = 1 + random.below(trial % 3 == 0   ? 3
                                           : trial % 3 == 1 ? 12
                                                            : 1000000);  // few kinds: many ties
    std::vector<A> s(static_cast<size_t>(n));
    for (A& v : s) {
      v = static_cast<A>(random.below(kinds)) - 1;
      const int64_t odd = random.below(20);
      if (odd == 0) v = -std::numeric_limits<A>::infinity();
      if (odd == 1) v = std::numeric_limits<A>::quiet_NaN();
      if (odd == 2) v = std::numeric_limits<A>::infinity();
      if (odd == 3) v = A{-0.0};
    }
    ASSERT_EQ(topk(s, k), sorted_topk(s, k)) << "n " << n << " k " << k << " kinds " << kinds;
  }
}

TEST(SelectTopk, EqualsSortingFloat) {
  random_topk<float>(51);
}
TEST(SelectTopk, EqualsSortingDouble) {
  random_topk<double>(52);
}

TEST(SelectTopk, Corners) {
  EXPECT_TRUE(topk<float>({}, 3).empty());
  EXPECT_TRUE(topk<float>({1, 2, 3}, 0).empty());
  EXPECT_TRUE(topk<float>({kNan, -kInf, kNan}, 2).empty());
  EXPECT_EQ(topk<float>({5, 5, 5, 5}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(topk<float>({0.0f, -0.0f, 0.0f}, 2), (std::vector<int32_t>{0, 1})) << "both zeros are one score";
  EXPECT_EQ(topk<float>({kInf, 1, kNan, kInf}, 3), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(topk<float>({1, 2}, 512), (std::vector<int32_t>{0, 1}));
}

TEST(SelectTopk, TheLongestContext) {
  Random random(53);
  for (int kind = 0; kind < 4; ++kind) {
    std::vector<float> s(1048576);
    for (size_t i = 0; i < s.size(); ++i)
      s[i] = kind == 0   ? static_cast<float>(random.normal())
             : kind == 1 ? 0.0f  // one tie over everything
             : kind == 2
                 ? static_cast<float>(i)                               // ascending
                 : static_cast<float>(random.below(2000) - 1990 > 0);  // a mass of zeros below 0.5 % ones
    EXPECT_EQ(topk(s, 512), sorted_topk(s, 512)) << kind;
  }
}

// ---- candidate pool

std::vector<uint8_t> pool_by_definition(const std::vector<float>& s, int blocks, int size) {
  const int64_t n = static_cast<int64_t>(s.size()), count = (n + size - 1) / size;
  std::vector<float> best(static_cast<size_t>(count), -kInf);
  for (int64_t j = 0; j < n; ++j)
    best[static_cast<size_t>(j / size)] =
        std::max(best[static_cast<size_t>(j / size)], order_value(s[static_cast<size_t>(j)]));
  best[static_cast<size_t>((n - 1) / size)] = kInf;
  std::vector<int32_t> order(best.size());
  std::iota(order.begin(), order.end(), 0);
  const int64_t newest = (n - 1) / size;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if ((a == newest) != (b == newest))
      return a == newest;  // forced in, before any other block of infinite score
    return best[static_cast<size_t>(a)] > best[static_cast<size_t>(b)];
  });
  std::vector<uint8_t> allowed(s.size(), 0);
  for (size_t i = 0; i < order.size() && i < static_cast<size_t>(blocks); ++i) {
    const size_t b = static_cast<size_t>(order[i]);
    if (best[b] == -kInf) continue;
    for (size_t j = b * static_cast<size_t>(size);
         j < std::min(s.size(), (b + 1) * static_cast<size_t>(size)); ++j)
      allowed[j] = 1;
  }
  return allowed;
}

TEST(CandidatePool, EqualsItsDefinition) {
  Random random(54);
  for (int trial = 0; trial < 500; ++trial) {
    const int64_t n = 1 + random.below(200);
    const int blocks = 1 + static_cast<int>(random.below(12)), size = 1 + static_cast<int>(random.below(9));
    const int64_t kinds = trial % 2 ? 4 : 100000;
    std::vector<float> s(static_cast<size_t>(n));
    for (float& v : s) {
      v = static_cast<float>(random.below(kinds)) - 2;
      const int64_t odd = random.below(trial % 5 == 0 ? 3 : 30);
      if (odd == 0) v = -kInf;
      if (odd == 1) v = kNan;
    }
    Guarded<float> scores(s);
    Guarded<int32_t> scratch(n);
    Guarded<uint8_t> allowed(n);
    candidate_pool(scores.data(), n, blocks, size, scratch.data(), allowed.data());
    ASSERT_EQ(allowed.vector(), pool_by_definition(s, blocks, size))
        << "n " << n << " blocks " << blocks << " size " << size;
  }
}

TEST(CandidatePool, TheNewestBlockIsKeptWhateverItsScore) {
  const std::vector<double> s = {9, 9, 8, 8, 7, 7, -100};
  std::vector<int32_t> scratch(s.size());
  std::vector<uint8_t> allowed(s.size());
  candidate_pool(s.data(), 7, 2, 2, scratch.data(), allowed.data());
  EXPECT_EQ(allowed, (std::vector<uint8_t>{1, 1, 0, 0, 0, 0, 1}));
  candidate_pool(s.data(), 7, 1, 2, scratch.data(), allowed.data());
  EXPECT_EQ(allowed, (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 1}));
}

// ---- routing

TEST(Route, WorkedNumbers) {
  const double logits[4] = {1, -2, 0.5, 3}, bias[4] = {0, 0.9, 0, -0.6};
  double scratch[4], weights[2];
  int32_t ids[2];
  route(logits, bias, RouterParams{4, 2, 0, true, 1.5, 1.0}, scratch, ids, weights);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 3);
  EXPECT_NEAR(weights[0], 0.2542011, 1e-7);
  EXPECT_NEAR(weights[1], 1.2457989, 1e-7);
  const float flogits[4] = {1, -2, 0.5, 3}, fbias[4] = {0, 0.9f, 0, -0.6f};
  float fscratch[4], fweights[2];
  route(flogits, fbias, RouterParams{4, 2, 0, true, 1.5, 1.0}, fscratch, ids, fweights);
  EXPECT_EQ(ids[1], 3);
  EXPECT_NEAR(fweights[1], 1.2457989, 1e-6);
}

TEST(Route, OtherScoringsScaleAndTemperature) {
  const double logits[3] = {1, 3, 2}, bias[3] = {0, 0, 0};
  double scratch[3], w[2];
  int32_t ids[2];
  route(logits, bias, RouterParams{3, 2, 1, false, 1.0, 2.0}, scratch, ids,
        w);  // softmax of halves, not normalised
  const double sum = std::exp(0.5) + std::exp(1.5) + std::exp(1.0);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 2);
  EXPECT_NEAR(w[0], std::exp(1.5) / sum, 1e-12);
  EXPECT_NEAR(w[1], std::exp(1.0) / sum, 1e-12);
  route(logits, bias, RouterParams{3, 2, 2, true, 2.0, 1.0}, scratch, ids,
        w);  // sigmoid, normalised, times 2
  const double a = 1 / (1 + std::exp(-3.0)), b = 1 / (1 + std::exp(-2.0));
  EXPECT_NEAR(w[0], 2 * a / (a + b), 1e-12);
  route(logits, bias, RouterParams{3, 1, 2, true, 1.5, 1.0}, scratch, ids, w);  // one expert: no division
  EXPECT_EQ(ids[0], 1);
  EXPECT_NEAR(w[0], 1.5 * a, 1e-12);
}

TEST(Route, TiesGoToTheLowerIdAndIdsAscend) {
  Random random(55);
  for (int trial = 0; trial < 300; ++trial) {
    const int E = 1 + static_cast<int>(random.below(40)), k = 1 + static_cast<int>(random.below(E));
    std::vector<float> logits(static_cast<size_t>(E)), bias(logits.size(), 0.0f), scratch(logits.size()),
        w(static_cast<size_t>(k));
    for (float& v : logits) v = static_cast<float>(random.below(4));
    if (trial % 3 == 0) logits[0] = kNan;
    std::vector<int32_t> ids(static_cast<size_t>(k));
    route(logits.data(), bias.data(), RouterParams{E, k, 0, true, 1.5, 1.0}, scratch.data(), ids.data(),
          w.data());
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return order_value(logits[static_cast<size_t>(a)]) > order_value(logits[static_cast<size_t>(b)]);
    });
    order.resize(static_cast<size_t>(k));
    std::sort(order.begin(), order.end());
    ASSERT_EQ(ids, order) << trial;
  }
}

TEST(Route, AllNanStillNamesDistinctExperts) {
  std::vector<float> logits(8, kNan), bias(8, 0.0f), scratch(8), w(3);
  std::vector<int32_t> ids(3);
  route(logits.data(), bias.data(), RouterParams{8, 3, 0, true, 1.5, 1.0}, scratch.data(), ids.data(),
        w.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Argmax, LowestIndexOnTiesAndNanNeverWins) {
  const float a[5] = {1, 3, 3, kNan, 2}, b[3] = {kNan, kNan, kNan}, c[3] = {-kInf, -kInf, -5},
              d[2] = {-kInf, -kInf};
  EXPECT_EQ(argmax(a, 5), 1);
  EXPECT_EQ(argmax(b, 3), 0);
  EXPECT_EQ(argmax(c, 3), 2);
  EXPECT_EQ(argmax(d, 2), 0);
}

}  // namespace
}  // namespace deepinfer
