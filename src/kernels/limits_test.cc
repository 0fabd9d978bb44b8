// The yardsticks measure something: every loop's work shows in its result, and nothing is left out of a read.
#include "kernels/limits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace deepinfer {
namespace {

TEST(Limits, EveryLoopDoesItsIterations) {
  auto loops = peak_loops();
  ASSERT_FALSE(loops.empty());
  EXPECT_EQ(std::string(loops[0].op), "fp32");
  for (const PeakLoop& l : loops) {
    EXPECT_GT(l.operations, 0) << l.op;
    float one = l.run(1), many = l.run(5);
    EXPECT_TRUE(std::isfinite(one) && std::isfinite(many)) << l.op;
    EXPECT_NE(one, many) << l.op;
  }
}

TEST(Limits, ReadingSeesEveryPart) {
  // The reader may prefetch past the end, never read there.
  std::vector<uint8_t> data(1 << 16, 0);
  EXPECT_EQ(read_bytes(data.data(), data.size()), 0u);
  for (size_t at : {size_t{0}, size_t{1000}, size_t{40000}}) {
    // Whole words of one kind cancel in no lane.
    data[at / 8 * 8] = 1;
    EXPECT_NE(read_bytes(data.data(), data.size()), 0u) << at;
    data[at / 8 * 8] = 0;
  }
}

}  // namespace
}  // namespace deepinfer
