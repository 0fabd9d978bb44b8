// Statistics of the evaluation against values worked out by hand.
#include "apps/eval_stats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer {
namespace {

TEST(EvalStats, WilsonLowerBound) {
  // (p + z^2/2n - z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964; at p = 1 it is n / (n + z^2).
  EXPECT_NEAR(wilson_lower(300, 300), 300 / (300 + 3.841459), 1e-6);
  EXPECT_NEAR(wilson_lower(95, 100), 0.888250, 2e-6);
  EXPECT_NEAR(wilson_lower(0, 10), 0.0, 1e-12);
  EXPECT_EQ(wilson_lower(0, 0), 0.0);
}

TEST(EvalStats, PassAtK) {
  EXPECT_DOUBLE_EQ(pass_at(4, 1, 2), 0.5);  // 1 - C(3,2)/C(4,2)
  EXPECT_DOUBLE_EQ(pass_at(5, 2, 1), 0.4);
  EXPECT_DOUBLE_EQ(pass_at(5, 2, 5), 1.0);
  EXPECT_DOUBLE_EQ(pass_at(5, 0, 5), 0.0);
  EXPECT_NEAR(pass_at(10, 3, 3), 1.0 - 35.0 / 120.0, 1e-12);
}

TEST(EvalStats, ClusteredMeanWeighsPositionsAndDrawsDocuments) {
  const Interval same = clustered_mean({{2, 4}, {1, 2}, {4, 8}});
  EXPECT_EQ(same.mean, 0.5);
  EXPECT_EQ(same.low, 0.5);  // every resample has the same mean
  EXPECT_EQ(same.high, 0.5);

  std::vector<Cluster> mixed;
  for (int i = 0; i < 100; ++i) mixed.push_back({i % 2 == 0 ? 1.0 : 0.0, 1});
  const Interval m = clustered_mean(mixed);
  EXPECT_EQ(m.mean, 0.5);
  // A binomial share of 100 documents: standard error 0.05, so about 0.5 +- 0.098; half a width of slack.
  EXPECT_NEAR(m.low, 0.402, 0.02);
  EXPECT_NEAR(m.high, 0.598, 0.02);
  const Interval again = clustered_mean(mixed);
  EXPECT_EQ(m.low, again.low);

  const Interval weighted = clustered_mean({{10, 10}, {0, 30}});
  EXPECT_EQ(weighted.mean, 0.25);
  EXPECT_EQ(clustered_mean({}).mean, 0.0);
}

TEST(DraftTally, CountsWhatWasObserved) {
  DraftTally t;
  t.add({0.9, 0.5, 0.25}, 3, 3);
  t.add({0.8, 0.5, 0.5}, 3, 1);
  t.add({0.7, 0.6, 0.5}, 1, 1);  // the text ends after the first draft
  t.add({0.1, 0.9, 0.9}, 3, 0);
  EXPECT_EQ(t.steps, 4);
  EXPECT_EQ(t.accepted, 5);
  EXPECT_DOUBLE_EQ(t.mean_accepted(), 1.25);
  ASSERT_EQ(t.positions.size(), 3u);
  EXPECT_EQ(t.positions[0].observed, 4);
  EXPECT_EQ(t.positions[0].survived, 3);
  EXPECT_EQ(t.positions[1].observed, 3);
  EXPECT_EQ(t.positions[1].survived, 1);
  EXPECT_EQ(t.positions[1].alive, 2);
  EXPECT_EQ(t.positions[1].accepted, 1);
  EXPECT_EQ(t.positions[2].alive, 1);
  EXPECT_EQ(t.positions[2].survived, 1);
  EXPECT_DOUBLE_EQ(t.positions[1].predicted, 0.9 * 0.5 + 0.8 * 0.5 + 0.1 * 0.9);
  EXPECT_DOUBLE_EQ(t.mean_accepted_uncut(), 3.0 / 4 + 1.0 / 3 + 1.0 / 3);
}

TEST(DraftTally, CalibrationErrorIsTheMeanDistanceOverBins) {
  DraftTally t;
  // Bin 0.9..1: four drafts of confidence 0.95, three accepted; bin 0.2..0.3: two of 0.25, one accepted.
  for (int i = 0; i < 3; ++i) t.add({0.95}, 1, 1);
  t.add({0.95}, 1, 0);
  t.add({0.25}, 1, 1);
  t.add({0.25}, 1, 0);
  EXPECT_NEAR(t.calibration_error(), (4 * std::abs(0.95 - 0.75) + 2 * std::abs(0.25 - 0.5)) / 6, 1e-12);
  DraftTally certain;
  certain.add({1.0}, 1, 1);  // confidence 1 belongs to the last bin
  EXPECT_EQ(certain.bins[9].n, 1);
  EXPECT_EQ(certain.calibration_error(), 0.0);
}

}  // namespace
}  // namespace deepinfer
