// conformance.jsonl: every valid text is reachable, every invalid one is not; walks through the masks of each
// schema only take what accept() takes, and the mask allows what accept() takes, bit by bit, at every
// position of every valid text.
#include <gtest/gtest.h>

#include <fstream>

#include "apps/grammar_bench.h"
#include "grammar/json_value.h"

namespace deepinfer {
namespace {

using grammar::JsonValue;

std::vector<JsonValue> suite() {
  std::ifstream in(std::string(DEEPINFER_SOURCE_DIR) + "/tests/grammar/conformance.jsonl");
  std::vector<JsonValue> out;
  for (std::string line; std::getline(in, line);) {
    auto v = grammar::parse_json_value(line, 100);
    EXPECT_TRUE(v.ok()) << v.status().to_string();
    if (v.ok()) out.push_back(*v);
  }
  return out;
}

grammar::GrammarSource source_of(const JsonValue& line) {
  grammar::GrammarSource s;
  s.text = line.find("schema")->text;
  const JsonValue* order = line.find("any_order");
  s.schema.any_order = order != nullptr && order->boolean;
  return s;
}

TEST(ConformanceTest, ValidTextsAreReachableAndInvalidOnesAreNot) {
  auto v = made_up_vocabulary(4000);
  int schemas = 0, valid = 0, invalid = 0;
  for (const JsonValue& line : suite()) {
    auto g = grammar::compile(source_of(line), v);
    ASSERT_TRUE(g.ok()) << line.find("schema")->text << ": " << g.status().to_string();
    ++schemas;
    auto reach = [&](const std::string& text) {
      grammar::Matcher m(*g);
      for (int32_t id : greedy_tokens(*v, text)) {
        if (!m.accept(id)) return false;
      }
      return m.can_stop();
    };
    for (const JsonValue& t : line.find("valid")->items) {
      EXPECT_TRUE(reach(t.text)) << line.find("schema")->text << "\n" << t.text;
      ++valid;
    }
    for (const JsonValue& t : line.find("invalid")->items) {
      EXPECT_FALSE(reach(t.text)) << line.find("schema")->text << "\n" << t.text;
      ++invalid;
    }
  }
  EXPECT_GE(schemas, 400);
  EXPECT_GE(valid, 850);
  EXPECT_GE(invalid, 1500);
}

TEST(ConformanceTest, EveryMaskBitIsWhatAcceptSays) {
  auto v = made_up_vocabulary(3300);
  std::vector<uint32_t> mask(v->mask_words());
  int64_t bits = 0;
  int number = 0;
  for (const JsonValue& line : suite()) {
    if (++number % 4 != 0 || line.find("valid")->items.empty()) continue;
    auto g = grammar::compile(source_of(line), v);
    ASSERT_TRUE(g.ok());
    grammar::Matcher m(*g);
    for (int32_t id : greedy_tokens(*v, line.find("valid")->items[0].text)) {
      ASSERT_TRUE(m.fill_mask(mask));
      for (int32_t t = 0; t < v->size(); ++t) {
        bool bit = (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0, taken = m.accept(t);
        if (taken) m.rollback(1);
        ASSERT_EQ(bit, taken) << line.find("schema")->text << " token '" << v->bytes(t) << "'";
        ++bits;
      }
      ASSERT_TRUE(m.accept(id));
    }
  }
  EXPECT_GT(bits, 1'000'000);
}

}  // namespace
}  // namespace deepinfer
