// Temperatures are recovered from synthetic heads whose distortion is known.
#include "policy/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace deepinfer::policy {
namespace {

// A head whose logits are `sharp[k]` times too large: drafts are right with sigmoid(logit / sharp[k]).
std::vector<OfflineSample> head(const std::vector<double>& sharp, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<OfflineSample> out(static_cast<size_t>(count));
  for (OfflineSample& s : out) {
    bool alive = true;
    for (double k : sharp) {
      double truth = (uniform() * 6 - 2);
      s.logits.push_back(static_cast<float>(truth * k));
      alive = alive && uniform() < confidence_of(truth, 1);
      s.accepted += alive ? 1 : 0;
    }
  }
  return out;
}

TEST(Calibration, OfflineFitRecoversTheTemperatures) {
  std::vector<double> sharp{2, 3, 1.5};
  auto samples = head(sharp, 40000, 1);
  std::vector<double> ones(3, 1.0), fitted = fit_temperatures(samples, 3);
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(std::log(fitted[k] / sharp[k]), 0, 0.2) << k;
  EXPECT_GT(calibration_error(samples, ones, -1), 0.05);
  EXPECT_LT(calibration_error(head(sharp, 40000, 2), fitted, -1), 0.015);
  EXPECT_EQ(calibration_error({}, fitted, -1), 0);
}

TEST(Calibration, OnlineFitRecoversThemFromVerifiedPrefixesOnly) {
  std::vector<double> sharp{2, 2.5, 2};
  CalibrationState s = make_calibration({3, 0.999, 64, 32});
  std::mt19937_64 random(3);
  for (const OfflineSample& o : head(sharp, 6000, 4)) {
    int verified = static_cast<int>(random() % 4);
    DraftOutcome d{o.logits, verified, std::min(o.accepted, verified)};
    observe(&s, {&d, 1});
  }
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(std::log(s.temperature[k] / sharp[k]), 0, 0.3) << k;
  EXPECT_LT(s.error, 0.06);
}

TEST(Calibration, FollowsADrift) {
  CalibrationState s = make_calibration({1, 0.99, 16, 32});
  auto feed = [&](double sharp, uint64_t seed) {
    for (const OfflineSample& o : head({sharp}, 3000, seed)) {
      DraftOutcome d{o.logits, 1, o.accepted};
      observe(&s, {&d, 1});
    }
  };
  feed(1, 5);
  EXPECT_NEAR(s.temperature[0], 1, 0.5);
  feed(4, 6);
  EXPECT_GT(s.temperature[0], 2.2);
}

TEST(Calibration, StaysAtOneWithoutTrialsAndSurvivesBadLogits) {
  CalibrationState s = make_calibration({2, 0.999, 64, 32});
  std::vector<float> bad{NAN, INFINITY};
  for (int i = 0; i < 20; ++i) {
    DraftOutcome d{bad, 2, 1};
    observe(&s, {&d, 1});
    DraftOutcome none{bad, 0, 0};
    observe(&s, {&none, 1});
  }
  EXPECT_EQ(s.temperature, (std::vector<double>{1, 1}));
  EXPECT_EQ(confidence_of(NAN, 1), 0);
  EXPECT_EQ(confidence_of(INFINITY, 2), 1);
}

}  // namespace
}  // namespace deepinfer::policy
