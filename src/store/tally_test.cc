// Steps cover every number once, and a quantile is known to a quarter.
#include "store/tally.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace deepinfer::store {
namespace {

TEST(Tally, StepsLieSideBySide) {
  EXPECT_EQ(Tally::step(-5), 0u);
  EXPECT_EQ(Tally::step(INT64_MAX), Tally::step(INT64_MAX - 1));
  ASSERT_LT(Tally::step(INT64_MAX), Tally().count.size());
  for (size_t i = 0; i < Tally::step(INT64_MAX); ++i) {
    EXPECT_EQ(Tally::step(Tally::most(i)), i);
    EXPECT_EQ(Tally::step(Tally::most(i) + 1), i + 1);
  }
}

TEST(Tally, QuantilesToAQuarter) {
  EXPECT_EQ(Tally().quantile(0.99), 0);
  std::mt19937_64 random(3);
  Tally t;
  std::vector<int64_t> all;
  for (int i = 0; i < 20000; ++i) {
    all.push_back(static_cast<int64_t>(random() >> (20 + random() % 40)));
    t.add(all.back());
  }
  std::sort(all.begin(), all.end());
  for (double share : {0.0, 0.1, 0.5, 0.9, 0.99, 0.9999}) {
    int64_t want = all[static_cast<size_t>(share * 20000)];
    EXPECT_GE(t.quantile(share), want);
    EXPECT_LE(static_cast<double>(t.quantile(share)), 1.25 * static_cast<double>(want) + 1);
  }
  EXPECT_EQ(t.up_to(3), std::count_if(all.begin(), all.end(), [](int64_t v) { return v <= 3; }));
  EXPECT_EQ(t.up_to(1023), std::count_if(all.begin(), all.end(), [](int64_t v) { return v <= 1023; }));
}

}  // namespace
}  // namespace deepinfer::store
