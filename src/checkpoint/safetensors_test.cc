// The header parser and layout check against hand-made bad files, one line per kind of harm, and the writer
// against the parser.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/names.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/test_directory.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(as_bytes(file), "f");
}

std::string entry(const std::string& name, const std::string& offsets, const std::string& dtype = "F32",
                  const std::string& shape = "[1]") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

// Problems of a file whose header parses.
std::string layout_problems(const std::string& file) {
  const auto header = parse(file);
  EXPECT_TRUE(header.ok()) << header.status().to_string();
  if (!header.ok()) return {};
  ProblemList problems;
  check_safetensors_layout(*header, file.size(), "f", &problems);
  return problems.empty() ? "" : problems.to_status("f").message();
}

TEST(Safetensors, ReadsAWellFormedHeader) {
  const std::string file =
      raw_safetensors("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "[4,12]", "BF16", "[2,2]") + "," +
                          entry("a", "[0,4]") + "}  ",
                      std::string(12, 'x'));
  const auto h = parse(file);
  ASSERT_TRUE(h.ok()) << h.status().to_string();
  ASSERT_EQ(h->tensors.size(), 2u);
  EXPECT_EQ(h->tensors[0].name, "b");
  EXPECT_EQ(h->tensors[0].dtype, "BF16");
  EXPECT_EQ(h->tensors[0].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(h->tensors[0].begin, 4u);
  EXPECT_EQ(h->tensors[0].end, 12u);
  EXPECT_EQ(h->metadata.at("format"), "pt");
  EXPECT_EQ(h->data_offset, file.size() - 12);
  EXPECT_EQ(layout_problems(file), "");
}

TEST(Safetensors, AcceptsScalarsAndEmptyTensors) {
  EXPECT_EQ(
      layout_problems(raw_safetensors(
          "{" + entry("s", "[0,4]", "F32", "[]") + "," + entry("e", "[4,4]", "F32", "[0,7]") + "}", "1234")),
      "");
  EXPECT_EQ(layout_problems(raw_safetensors("{}")), "");
}

struct Bad {
  const char* what;
  std::string file;
  const char* message;  // a part of it
};

TEST(Safetensors, RefusesHostileHeaders) {
  const std::string ok = entry("a", "[0,4]");
  std::string huge = raw_safetensors("{}");
  huge[7] = 0x7f;
  std::string above_limit(8, '\0');
  above_limit[0] = 0x01, above_limit[1] = static_cast<char>(0xe1), above_limit[2] = static_cast<char>(0xf5),
  above_limit[3] = 0x05;
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const Bad table[] = {
      {"empty file", "", "too few"},
      {"seven bytes", std::string(7, '\0'), "too few"},
      {"length of 2^63", huge, "above the format's limit"},
      {"one above the limit", above_limit, "100000001 is above"},
      {"length beyond the file", raw_safetensors("{}").substr(0, 9),
       "truncated: the header should have 2 bytes, the file has 1"},
      {"no header at all", std::string(8, '\0'), "not valid JSON"},
      {"not JSON", raw_safetensors("hello"), "not valid JSON near byte"},
      {"cut JSON", raw_safetensors("{" + ok), "not valid JSON"},
      {"more after the object", raw_safetensors("{" + ok + "}{}", "1234"), "not valid JSON"},
      {"bad UTF-8", raw_safetensors("{\"\xff\":{}}"), "not valid JSON"},
      {"a list", raw_safetensors("[]"), "is a list"},
      {"a number", raw_safetensors("5"), "not an object"},
      {"a string", raw_safetensors("\"x\""), "not an object"},
      {"null", raw_safetensors("null"), "is null"},
      {"deep lists", raw_safetensors(deep), "is a list"},
      {"deep objects", raw_safetensors("{\"a\":{\"shape\":" + deep + "}}"), "deeper than"},
      {"a deep shape", raw_safetensors("{" + entry("a", "[0,4]", "F32", "[[1]]") + "}"), "deeper than"},
      {"an entry that is a number", raw_safetensors("{\"a\":5}"), "'a' is a number"},
      {"an entry that is a list", raw_safetensors("{\"a\":[1]}"), "'a' is a list"},
      {"a name twice", raw_safetensors("{" + ok + "," + ok + "}", "1234"), "'a' appears twice"},
      {"an escaped name twice", raw_safetensors("{" + ok + "," + entry("\\u0061", "[0,4]") + "}", "1234"),
       "'a' appears twice"},
      {"metadata twice", raw_safetensors("{\"__metadata__\":{},\"__metadata__\":{}}"), "appears twice"},
      {"metadata key twice", raw_safetensors("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), "'k' twice"},
      {"metadata of numbers", raw_safetensors("{\"__metadata__\":{\"k\":1}}"), "where it does not belong"},
      {"metadata of objects", raw_safetensors("{\"__metadata__\":{\"k\":{}}}"), "unexpected nested"},
      {"an empty name", raw_safetensors("{" + entry("", "[0,4]") + "}"), "empty name"},
      {"dtype twice", raw_safetensors("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), "'dtype' twice"},
      {"unknown member", raw_safetensors("{\"a\":{\"strides\":[1]}}"), "unknown member 'strides'"},
      {"no dtype", raw_safetensors("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}"), "needs dtype"},
      {"no shape", raw_safetensors("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}"), "needs dtype"},
      {"one offset", raw_safetensors("{" + entry("a", "[0]") + "}"), "two data_offsets"},
      {"three offsets", raw_safetensors("{" + entry("a", "[0,4,8]") + "}"), "more than two"},
      {"a negative offset", raw_safetensors("{" + entry("a", "[-4,0]") + "}"), "a negative number"},
      {"a fractional offset", raw_safetensors("{" + entry("a", "[0,4.5]") + "}"), "not a whole one"},
      {"an offset beyond 64 bits", raw_safetensors("{" + entry("a", "[0,99999999999999999999]") + "}"),
       "not a whole one"},
      {"an offset beyond doubles", raw_safetensors("{" + entry("a", "[0,1e999]") + "}"), "not valid JSON"},
      {"offsets as text", raw_safetensors("{" + entry("a", "\"0,4\"") + "}"), "a string where"},
      {"a negative dimension", raw_safetensors("{" + entry("a", "[0,4]", "F32", "[-1]") + "}"),
       "a negative number"},
      {"a dimension beyond int64",
       raw_safetensors("{" + entry("a", "[0,4]", "F32", "[9223372036854775808]") + "}"), "a dimension of"},
      {"dimensions that overflow",
       raw_safetensors("{" + entry("a", "[0,4]", "F32", "[4294967296,4294967296]") + "}"),
       "impossible shape"},
      {"nine dimensions", raw_safetensors("{" + entry("a", "[0,4]", "F32", "[1,1,1,1,1,1,1,1,1]") + "}"),
       "more than 8"},
      {"a type that is a number", raw_safetensors("{\"a\":{\"dtype\":1}}"), "a number where"},
  };
  for (const Bad& bad : table) {
    const auto r = parse(bad.file);
    ASSERT_FALSE(r.ok()) << bad.what;
    EXPECT_EQ(r.status().code(), Code::kInvalidData) << bad.what;
    EXPECT_THAT(r.status().message(), HasSubstr(bad.message)) << bad.what;
    EXPECT_THAT(r.status().message(), ::testing::StartsWith("f: ")) << bad.what;
    EXPECT_LT(r.status().message().size(), 400u) << bad.what;
  }
}

TEST(Safetensors, FindsBadLayouts) {
  const std::string a = entry("a", "[0,4]"), twelve(12, 'x');
  const Bad table[] = {
      {"beyond the file", raw_safetensors("{" + entry("a", "[0,8]", "F32", "[2]") + "}", "1234"),
       "truncated: tensor a ends at data byte 8, the file has 4"},
      {"far beyond", raw_safetensors("{" + entry("a", "[0,18446744073709551615]", "U8", "[5]") + "}", "1234"),
       "truncated: tensor a"},
      {"end before begin", raw_safetensors("{" + entry("a", "[4,0]") + "}", "1234"),
       "ends at 0 before it begins at 4"},
      {"too few bytes for the shape", raw_safetensors("{" + entry("a", "[0,4]", "F32", "[2]") + "}", "1234"),
       "tensor a has 4 bytes, but F32 [2] needs 8"},
      {"size overflow by type",
       raw_safetensors("{" + entry("a", "[0,4]", "F64", "[2305843009213693952]") + "}", "1234"),
       "tensor a has 4 bytes"},
      {"half a byte", raw_safetensors("{" + entry("a", "[0,1]", "F4", "[1]") + "}", "1"),
       "tensor a has 1 bytes"},
      {"unknown type", raw_safetensors("{" + entry("a", "[0,4]", "F99") + "}", "1234"), "unknown type F99"},
      {"overlap",
       raw_safetensors(
           "{" + entry("a", "[0,8]", "F32", "[2]") + "," + entry("b", "[4,12]", "F32", "[2]") + "}", twelve),
       "tensor b at [4, 12) overlaps a at [0, 8)"},
      {"same place", raw_safetensors("{" + a + "," + entry("b", "[0,4]") + "}", "1234"), "overlaps"},
      {"inside another",
       raw_safetensors("{" + entry("a", "[0,12]", "F32", "[3]") + "," + entry("b", "[4,8]") + "," +
                           entry("c", "[8,12]") + "}",
                       twelve),
       "tensor c at [8, 12) overlaps a at [0, 12)"},
      {"hole at the start", raw_safetensors("{" + entry("a", "[4,8]") + "}", "12345678"),
       "hole of 4 bytes before tensor a"},
      {"hole between", raw_safetensors("{" + a + "," + entry("b", "[8,12]") + "}", twelve),
       "hole of 4 bytes before tensor b"},
      {"bytes at the end", raw_safetensors("{" + a + "}", "12345"), "1 bytes after the last tensor"},
      {"data without tensors", raw_safetensors("{}", "1"), "1 bytes after the last tensor"},
  };
  for (const Bad& bad : table) EXPECT_THAT(layout_problems(bad.file), HasSubstr(bad.message)) << bad.what;
}

TEST(Safetensors, ListsTheFirstTwentyProblemsAndCountsTheRest) {
  std::string json = "{";
  for (int i = 0; i < 50; ++i) json += (i ? "," : "") + entry("t" + std::to_string(i), "[0,4]");
  const std::string text = layout_problems(raw_safetensors(json + "}", "1234"));
  EXPECT_THAT(text, HasSubstr("f: 49 problems:"));
  EXPECT_THAT(text, HasSubstr("and 29 more"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
}

TEST(Safetensors, ShowsHostileNamesHarmlessly) {
  EXPECT_EQ(shown_name("layers.0.x"), "layers.0.x");
  EXPECT_EQ(shown_name(std::string("a\nb\x1b[31m\0c", 9)), "a\\x0ab\\x1b[31m\\x00");
  EXPECT_EQ(shown_name("<｜User｜>"), "<｜User｜>");
  EXPECT_EQ(shown_name("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(shown_name("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_LE(shown_name(std::string(100000, 'x')).size(), 130u);
}

TEST(Safetensors, WritesWhatItReads) {
  std::vector<TensorEntry> tensors = {{"x.weight", "F32", {2, 3}}, {"na\"me", "BF16", {}}, {"z", "I8", {5}}};
  const std::string head = make_safetensors_header(&tensors, {{"k", "v"}});
  EXPECT_EQ(head.size() % 64, 0u);
  const std::string file = head + std::string(24 + 2 + 5, 'd');
  const auto h = parse(file);
  ASSERT_TRUE(h.ok()) << h.status().to_string();
  EXPECT_EQ(layout_problems(file), "");
  ASSERT_EQ(h->tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(h->tensors[i].name, tensors[i].name);
    EXPECT_EQ(h->tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(h->tensors[i].begin, tensors[i].begin);
    EXPECT_EQ(h->tensors[i].end, tensors[i].end);
  }
  EXPECT_EQ(h->metadata.at("k"), "v");
}

Result<ShardIndex> parse_index(const std::string& text) {
  return parse_shard_index(as_bytes(text), "i");
}

TEST(ShardIndex, ReadsTheReleasedForm) {
  const auto r = parse_index(
      R"({"metadata":{"total_size":12,"note":[{"x":1.5}]},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"},"extra":[[[]]]})");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->total_size, 12u);
  EXPECT_EQ(r->files, (std::vector<std::string>{"m-1.safetensors", "m-2.safetensors"}));
  EXPECT_EQ(r->weight_map.at("c"), "m-2.safetensors");
  const auto again = parse_index(make_shard_index(*r));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->weight_map, r->weight_map);
  EXPECT_EQ(again->total_size, r->total_size);
}

TEST(ShardIndex, RefusesHostileText) {
  const Bad table[] = {
      {"empty", "", "not valid JSON"},
      {"a list", "[]", "is a list"},
      {"a number", "7", "not an object"},
      {"no map", "{}", "no weight_map"},
      {"map is a list", R"({"weight_map":["a"]})", "weight_map is a list"},
      {"map is text", R"({"weight_map":"a"})", "a string where"},
      {"map of numbers", R"({"weight_map":{"a":1}})", "a number where"},
      {"map of objects", R"({"weight_map":{"a":{}}})", "something else than names"},
      {"two maps", R"({"weight_map":{},"weight_map":{}})", "'weight_map' appears twice"},
      {"a tensor twice", R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "'a' appears twice"},
      {"parent directory", R"({"weight_map":{"a":"../x.safetensors"}})", "a path, not a plain file name"},
      {"absolute path", R"({"weight_map":{"a":"/etc/passwd"}})", "a path, not a plain file name"},
      {"sub-directory", R"({"weight_map":{"a":"b/x.safetensors"}})", "a path"},
      {"back-slash", R"({"weight_map":{"a":"..\\x.safetensors"}})", "a path"},
      {"zero byte", R"({"weight_map":{"a":"x\u0000.safetensors"}})", "a control character"},
      {"other ending", R"({"weight_map":{"a":"config.json"}})", "not a .safetensors file"},
      {"only the ending", R"({"weight_map":{"a":".safetensors"}})", "a hidden file"},
      {"no name", R"({"weight_map":{"a":""}})", "an empty file name"},
      {"too deep", "{\"x\":" + std::string(1000, '[') + std::string(1000, ']') + "}", "deeper than"},
  };
  for (const Bad& bad : table) {
    const auto r = parse_index(bad.file);
    ASSERT_FALSE(r.ok()) << bad.what;
    EXPECT_EQ(r.status().code(), Code::kInvalidData) << bad.what;
    EXPECT_THAT(r.status().message(), HasSubstr(bad.message)) << bad.what;
  }
  EXPECT_FALSE(parse_index(R"({"weight_map":{"a":")" + std::string(300, 'x') + ".safetensors\"}}").ok());
}

TEST(TensorNames, AcceptsTheSpellingsOfOtherExports) {
  const std::pair<const char*, const char*> table[] = {
      {"embed.weight", "embed.weight"},
      {"model.embed.weight", "embed.weight"},
      {"model.layers.3.self_attn.wq_a.weight", "layers.3.attn.wq_a.weight"},
      {"layers.3.self_attn.wq_a.weight_scale_inv", "layers.3.attn.wq_a.scale"},
      {"layers.3.mlp.experts.7.w1.weight", "layers.3.ffn.experts.7.w1.weight"},
      {"mtp.0.mlp.gate.e_score_correction_bias", "mtp.0.ffn.gate.bias"},
      {"vision.blocks.0.mlp.w1.weight", "vision.blocks.0.mlp.w1.weight"},
      {"layers.0.attn.attn_sink", "layers.0.attn.attn_sink"},
      {"model.model.norm.weight", "model.norm.weight"},
      {"", ""},
      {"..", ".."},
  };
  for (const auto& [given, want] : table) EXPECT_EQ(canonical_tensor_name(given), want) << given;
}

}  // namespace
}  // namespace deepinfer
