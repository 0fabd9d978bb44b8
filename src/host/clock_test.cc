// The monotonic clock never goes back and advances with real time; the wall clock is after this file was
// written.
#include "host/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace deepinfer {
namespace {

TEST(Clock, Monotonic) {
  int64_t a = now_ns();
  for (int i = 0; i < 1000; ++i) {
    int64_t b = now_ns();
    ASSERT_GE(b, a);
    a = b;
  }
  int64_t start = now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(now_ns() - start, 5'000'000);
}

TEST(Clock, WallTimeIsPlausible) {
  EXPECT_GT(wall_time_ns(), int64_t{1'700'000'000} * 1'000'000'000);
}

}  // namespace
}  // namespace deepinfer
