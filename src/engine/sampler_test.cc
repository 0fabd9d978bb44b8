// The sampler: greedy and its ties, each filter, what is never chosen, and that draws follow the filtered
// distribution, are functions of (seed, position) alone, and stay the same from one version of the program to
// the next.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace deepinfer {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

// How often each id is drawn at positions 0 .. draws - 1.
std::vector<int> histogram(const std::vector<double>& logits, const SamplingParams& p, int draws) {
  std::vector<int> count(logits.size(), 0);
  for (int i = 0; i < draws; ++i) {
    ++count[static_cast<size_t>(sample(logits.data(), static_cast<int64_t>(logits.size()), i, p))];
  }
  return count;
}

SamplingParams at_temperature(double t) {
  SamplingParams p;
  p.temperature = t;
  p.seed = 7;
  return p;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOnTies) {
  std::vector<double> z = {kNan, 1, 3, 3, kInf, -kInf};
  SamplingParams greedy;
  EXPECT_EQ(sample(z.data(), 6, 0, greedy), 2);
  EXPECT_EQ(sample(z.data(), 6, 0, greedy, {2}), 3);
  EXPECT_EQ(sample(z.data(), 6, 0, greedy, {2, 3}), 1);
}

TEST(Sampler, NothingLeftStillGivesAnId) {
  std::vector<double> z = {kNan, -kInf, kInf};
  EXPECT_EQ(sample(z.data(), 3, 0, {}), 0);
  EXPECT_EQ(sample(z.data(), 3, 0, at_temperature(1)), 0);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<double> probability = {0.5, 0.25, 0.15, 0.1};
  std::vector<double> z;
  for (double p : probability) z.push_back(std::log(p) + 3.0);  // a constant changes nothing
  const int draws = 20000;
  std::vector<int> count = histogram(z, at_temperature(1), draws);
  for (size_t i = 0; i < z.size(); ++i) {
    double sigma = std::sqrt(draws * probability[i] * (1 - probability[i]));
    EXPECT_NEAR(count[i], draws * probability[i], 4 * sigma) << "id " << i;
  }
  // Temperature 1/2 squares the probabilities: 0.25 / (0.25 + 0.0625 + 0.0225 + 0.01).
  double first = 0.25 / 0.345, sigma = std::sqrt(draws * first * (1 - first));
  EXPECT_NEAR(histogram(z, at_temperature(0.5), draws)[0], draws * first, 4 * sigma);
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  std::vector<double> z;
  for (double p : {0.4, 0.3, 0.2, 0.1}) z.push_back(std::log(p));
  auto kept = [&](const SamplingParams& p) {
    std::set<size_t> ids;
    std::vector<int> count = histogram(z, p, 2000);
    for (size_t i = 0; i < count.size(); ++i) {
      if (count[i] > 0) ids.insert(i);
    }
    return ids;
  };
  SamplingParams p = at_temperature(1);
  EXPECT_EQ(kept(p), (std::set<size_t>{0, 1, 2, 3}));
  p.top_k = 2;
  EXPECT_EQ(kept(p), (std::set<size_t>{0, 1}));
  p.top_k = 0;
  p.top_p = 0.65;  // 0.4 + 0.3 is the first sum that reaches it
  EXPECT_EQ(kept(p), (std::set<size_t>{0, 1}));
  p.top_p = 0.01;
  EXPECT_EQ(kept(p), (std::set<size_t>{0}));
  p.top_p = 1;
  p.min_p = 0.45;  // at least 0.45 * 0.4 = 0.18
  EXPECT_EQ(kept(p), (std::set<size_t>{0, 1, 2}));
  p.top_k = 3;
  p.top_p = 0.99;  // of what top-k left, renormalised: all three
  EXPECT_EQ(kept(p), (std::set<size_t>{0, 1, 2}));
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndPosition) {
  std::vector<double> z(64, 0.0);
  std::set<int32_t> by_position, by_seed;
  for (int i = 0; i < 50; ++i) {
    by_position.insert(sample(z.data(), 64, i, at_temperature(1)));
    SamplingParams p = at_temperature(1);
    p.seed = static_cast<uint64_t>(i);
    by_seed.insert(sample(z.data(), 64, 5, p));
    EXPECT_EQ(sample(z.data(), 64, 5, p), sample(z.data(), 64, 5, p));
  }
  // 50 of 64 equally likely ids: about 35 different ones are expected; far fewer means the key is not used.
  EXPECT_GT(by_position.size(), 20u);
  EXPECT_GT(by_seed.size(), 20u);
}

TEST(Sampler, ABanDoesNotMoveTheOtherDraws) {
  std::vector<double> z(16, 0.0);
  SamplingParams p = at_temperature(1);
  for (int i = 0; i < 200; ++i) {
    int32_t free = sample(z.data(), 16, i, p);
    int32_t other = free == 3 ? 4 : 3;
    EXPECT_EQ(sample(z.data(), 16, i, p, {other}), free);
    EXPECT_NE(sample(z.data(), 16, i, p, {free}), free);
  }
}

TEST(Sampler, UniformIsUniformAndPinned) {
  double sum = 0, squares = 0;
  const int n = 100000;
  std::set<double> seen;
  for (int i = 0; i < n; ++i) {
    double u = counter_uniform(1, i / 100, DrawPurpose::kToken, static_cast<uint32_t>(i % 100));
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
    seen.insert(u);
  }
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
  EXPECT_EQ(seen.size(), static_cast<size_t>(n));
  // A seeded answer must not change with the program's version: these bits are part of the contract.
  EXPECT_EQ(counter_uniform(0, 0, DrawPurpose::kToken, 0), 0x1.c81782e482cccp-1);
  EXPECT_EQ(counter_uniform(42, 1000000, DrawPurpose::kToken, 129279), 0x1.b2547ee7e157dp-2);
}

TEST(Sampler, FloatAndDoubleAgreeOnExactLogits) {
  std::vector<double> d = {0.5, 1.25, -2, 0.75};
  std::vector<float> f(d.begin(), d.end());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sample(d.data(), 4, i, at_temperature(1)), sample(f.data(), 4, i, at_temperature(1)));
  }
}

TEST(Sampler, ParametersOutOfRangeNameTheField) {
  auto message = [](auto change) {
    SamplingParams p;
    change(p);
    return validate(p).message();
  };
  EXPECT_TRUE(validate({}).ok());
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = -1; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = kNan; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_k = -1; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.min_p = 1; }).find("min_p"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
