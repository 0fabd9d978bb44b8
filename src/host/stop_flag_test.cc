// The first signal sets the flag, the second of its kind ends the process, and leaving the scope restores
// what was before.
#include "host/stop_flag.h"

#include <gtest/gtest.h>

#include <csignal>

namespace deepinfer {
namespace {

TEST(StopFlag, SignalsSetTheFlag) {
  for (int number : {SIGINT, SIGTERM}) {
    StopFlag flag;
    EXPECT_FALSE(flag.stop_requested());
    EXPECT_EQ(flag.signal_number(), 0);
    std::raise(number);
    EXPECT_TRUE(flag.stop_requested());
    EXPECT_EQ(flag.signal_number(), number);
  }
}

TEST(StopFlag, RequestFromInside) {
  StopFlag flag;
  flag.request_stop();
  EXPECT_TRUE(flag.stop_requested());
  EXPECT_EQ(flag.signal_number(), 0);
}

TEST(StopFlag, RestoresTheEarlierHandler) {
  struct sigaction ignore{}, now{}, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &before);
  {
    StopFlag flag;
  }
  sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  sigaction(SIGINT, &before, nullptr);
}

TEST(StopFlagDeathTest, SecondSignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StopFlag flag;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopFlagDeathTest, TwoAtATimeAreAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        StopFlag a;
        StopFlag b;
      },
      "two StopFlags");
}

}  // namespace
}  // namespace deepinfer
