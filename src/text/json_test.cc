// Numbers, escapes, order, depth and faults of text/json.h.
#include "text/json.h"

#include <gtest/gtest.h>

#include <chrono>

namespace deepinfer {
namespace {

std::string python(const std::string& text) {
  Result<Json> v = parse_json(text);
  return v.ok() ? to_python_json(*v) : v.status().message();
}
std::string compact(const std::string& text) {
  std::string out;
  append_json(parse_json(text).value(), JsonStyle::kCompact, &out);
  return out;
}

TEST(Json, PythonStyleNumbers) {
  for (auto [in, out] : std::vector<std::pair<std::string, std::string>>{
           {"1", "1"},
           {"-5", "-5"},
           {"18446744073709551615", "18446744073709551615"},
           {"-9223372036854775808", "-9223372036854775808"},
           {"12345678901234567890123", "1.2345678901234568e+22"},
           {"1.0", "1.0"},
           {"2.50", "2.5"},
           {"1e5", "100000.0"},
           {"1e16", "1e+16"},
           {"123456789012345.0", "123456789012345.0"},
           {"9999999999999998.0", "9999999999999998.0"},
           {"1e-5", "1e-05"},
           {"1.5e-7", "1.5e-07"},
           {"0.0001", "0.0001"},
           {"0.00012345", "0.00012345"},
           {"-0.0", "-0.0"},
           {"-0", "-0.0"},
           {"2.5e300", "2.5e+300"},
           {"1E2", "100.0"},
           {"0.1", "0.1"},
           {"1.5", "1.5"},
           {"5e-324", "5e-324"},
           {"1.7976931348623157e308", "1.7976931348623157e+308"}}) {
    EXPECT_EQ(python(in), out);
  }
}

TEST(Json, PythonStyleSeparatorsEscapesAndOrder) {
  EXPECT_EQ(python(R"({"z":1,"a":[true,null,{"k":"é/"}],"m":{},"n":[]})"),
            R"({"z": 1, "a": [true, null, {"k": "é/"}], "m": {}, "n": []})");
  EXPECT_EQ(python("\"q\\\"\\\\\\b\\t\\n\\f\\r\\u0001\\u007f\\/\""),
            "\"q\\\"\\\\\\b\\t\\n\\f\\r\\u0001\x7f/\"");
  EXPECT_EQ(python(R"({"z":1,"a":2,"z":3})"), R"({"z": 3, "a": 2})")
      << "a repeated member keeps its place and takes the last value";
}

TEST(Json, CompactStyleHasOneLineForEveryReader) {
  EXPECT_EQ(compact(R"({"a": [1, "x y"], "b": 1.0})"), R"({"a":[1,"x y"],"b":1.0})");
  EXPECT_EQ(compact(R"("a\u2028b\u2029c\u0085d\n")"), R"("a\u2028b\u2029c\u0085d\n")");
}

TEST(Json, LoneSurrogatesAndBadBytesBecomeReplacementCharacters) {
  EXPECT_EQ(python(R"("a\ud800b")"),
            "\"a\xef\xbf\xbd"
            "b\"");
  EXPECT_EQ(python(R"("\udc00\ud83d\ude00\ud83d")"), "\"\xef\xbf\xbd😀\xef\xbf\xbd\"");
  EXPECT_EQ(python("\"a\xff\xe4\xb8\""), "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(python(R"("\\ud800")"), R"("\\ud800")") << "an escaped backslash starts no escape";
}

TEST(Json, NestingLimit) {
  auto nested = [](int n) {
    return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']');
  };
  EXPECT_TRUE(parse_json(nested(127)).ok());
  EXPECT_FALSE(parse_json(nested(200)).ok());
  EXPECT_FALSE(parse_json(nested(1000000)).ok());
  EXPECT_TRUE(parse_json("\"" + std::string(500, '[') + "\"").ok()) << "brackets in strings do not count";
}

// A repeated member is found among few members by search and among many by index; both keep its place.
TEST(Json, ManyMembersTakeLinearTime) {
  for (int n : {15, 16, 17, 40, 200000}) {
    std::string text = "{";
    for (int i = 0; i < n; ++i) text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
    text += "\"k3\":{\"a\":1},\"k" + std::to_string(n - 1) + "\":\"last\",\"new\":[]}";
    auto start = std::chrono::steady_clock::now();
    Result<Json> v = parse_json(text);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(v.ok());
    ASSERT_EQ(v->size(), static_cast<size_t>(n) + 1);
    const auto* member = v->get_ref<const Json::object_t&>().data();
    EXPECT_EQ(member[3].second, Json({{"a", 1}}));
    EXPECT_EQ(member[n - 1].second, "last");
    EXPECT_EQ(member[n].first, "new");
    // Quadratic time is minutes here; linear is a fraction of a second.
    EXPECT_LT(took.count(), 20) << n;
  }
}

TEST(Json, ErrorsSayWhere) {
  Result<Json> r = parse_json("{\"a\":\n  x}");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  EXPECT_NE(r.status().message().find("line 2"), std::string::npos) << r.status().message();
  for (const char* bad : {"", "{", "[1,]", "nul", "1 2", "\"a", "{\"a\" 1}", "1e999"})
    EXPECT_FALSE(parse_json(bad).ok()) << bad;
}

}  // namespace
}  // namespace deepinfer
