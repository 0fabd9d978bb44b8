// Traces read as they should, and every kind of bad line is refused with its place and a way out.
#include "sim/trace.h"

#include <gtest/gtest.h>

namespace deepinfer::sim {
namespace {

TEST(Trace, BothFormatsReadAlike) {
  const char* lines =
      "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}\n\r\n"
      "{\"output_length\": 1, \"timestamp\": 30000.5, \"input_length\": 100}";
  const char* csv = "timestamp,input_length,output_length,hash_ids\n27482,6955,52,46 47\n30000.5,100,1,\n";
  Trace a = parse_trace(lines, "a").value(), b = parse_trace(csv, "b").value();
  for (const Trace* t : {&a, &b}) {
    ASSERT_EQ(t->requests.size(), 2u);
    EXPECT_EQ(t->requests[0].arrival_ns, 27'482'000'000);
    EXPECT_EQ(t->requests[0].input_tokens, 6955);
    EXPECT_EQ(t->requests[0].output_tokens, 52);
    EXPECT_EQ(t->requests[0].id_count, 2u);
    EXPECT_EQ(t->ids[1], 47u);
    EXPECT_EQ(t->requests[1].arrival_ns, 30'000'500'000);
    EXPECT_EQ(t->requests[1].id_count, 0u);
    EXPECT_EQ(t->reordered, 0);
  }
}

TEST(Trace, SortsLateLinesAndSaysSo) {
  Trace t = parse_trace("timestamp,input_length,output_length\n5,10,1\n3,20,1\n4,30,1\n", "t").value();
  EXPECT_EQ(t.reordered, 1);
  EXPECT_EQ(t.requests[0].input_tokens, 20);
  EXPECT_EQ(t.requests[2].input_tokens, 10);
}

TEST(Trace, BadLinesAreRefusedWithTheirPlace) {
  const std::string good = "{\"timestamp\": 1, \"input_length\": 10, \"output_length\": 1}\n";
  struct Case {
    std::string text, words;
  };
  for (const Case& c : {
           Case{"", "no requests"},
           Case{good + "{\"timestamp\": 1", "t:2: not valid JSON"},
           Case{good + "[1]", "t:2: not a JSON object"},
           Case{good + "{\"input_length\": 10, \"output_length\": 1}", "t:2: \"timestamp\" is missing"},
           Case{"{\"timestamp\": -1, \"input_length\": 10, \"output_length\": 1}", "t:1: timestamp -1"},
           Case{"{\"timestamp\": 1, \"output_length\": 1}", "\"input_length\" is missing"},
           Case{"{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1}", "not a whole number"},
           Case{"{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1}",
                "input_length 0 is not between"},
           Case{"{\"timestamp\": 1, \"input_length\": 9, \"output_length\": -4}",
                "output_length -4 is not between"},
           Case{"{\"timestamp\": 1, \"input_length\": 18446744073709551615, \"output_length\": 1}",
                "too large"},
           Case{"{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": 3}",
                "not a list"},
           Case{"{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [\"x\"]}",
                "whole number"},
           Case{"{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [1,2]}",
                "block size"},
           Case{"hello\n", "t:1: the first line must be JSON or name the columns"},
           Case{"timestamp,input_length,output_length\n1,2\n", "t:2: 2 columns where the first line has 3"},
           Case{"timestamp,input_length,output_length\n1,2,1e3\n",
                "t:2: timestamp and lengths must be plain"},
       }) {
    Result<Trace> r = parse_trace(c.text, "t");
    ASSERT_FALSE(r.ok()) << c.text;
    EXPECT_EQ(r.status().code(), Code::kInvalidData);
    EXPECT_NE(r.status().message().find(c.words), std::string::npos) << r.status().message();
  }
  TraceLimits few;
  few.max_requests = 1;
  EXPECT_EQ(parse_trace(good + good, "t", few).status().code(), Code::kResourceExhausted);
  few.max_line_bytes = 10;
  EXPECT_FALSE(parse_trace(good, "t", few).ok());
}

}  // namespace
}  // namespace deepinfer::sim
