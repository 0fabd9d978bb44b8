// Result and Status: values pass, errors keep code and place, a value of an error aborts with its message.
#include "base/status.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<int> half(int v) {
  if (v % 2 != 0) return error(Code::kInvalidArgument, "{} is odd; give an even number", v);
  return v / 2;
}

Status both(int a, int b, int* out) {
  DI_ASSIGN(int x, half(a));
  DI_ASSIGN(int y, half(b));
  *out = x + y;
  return {};
}

TEST(Status, ResultAndMacros) {
  int out = 0;
  EXPECT_TRUE(both(4, 6, &out).ok());
  EXPECT_EQ(out, 5);
  Status s = both(4, 7, &out);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.with_context("second").to_string(), "invalid argument: second: 7 is odd; give an even number");
  EXPECT_DEATH(std::ignore = half(3).value(), "3 is odd");
}

}  // namespace
}  // namespace deepinfer
