// The limits are there, positive, and grow with threads as far as they can.
#include "apps/bench_limits.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(BenchLimits, MeasuresEveryKindInLittleTime) {
  Topology t = read_topology();
  LimitOptions o;
  o.seconds = 0.02;
  o.threads = 2;
  o.buffer_bytes = 8 << 20;
  auto lines = measure_limits(t, o);
  EXPECT_GT(limit_of(lines, "multiply_add", "fp32", 1), 0);
  EXPECT_GT(limit_of(lines, "multiply_add", "fp32", 2), 0);
  EXPECT_GT(limit_of(lines, "read", "memory", 1), 0);
  EXPECT_EQ(limit_of(lines, "read", "memory", 3), 0);
  for (const BenchLine& l : lines) {
    EXPECT_GT(l.achieved, 0) << l.op << " " << l.format;
    EXPECT_EQ(l.share, 1);
  }
  auto j = to_json(lines);
  for (const char* key : {"op", "format", "rows", "threads", "achieved", "unit", "limit", "share"})
    EXPECT_TRUE(j[0].contains(key)) << key;
  EXPECT_NE(to_table(lines).find("multiply_add"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
