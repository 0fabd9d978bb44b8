// Merges against their definition, bytes, added tokens, spans, time on a megabyte of anything, and refused
// files.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>

#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

using testing::test_tokenizer;
using testing::test_tokenizer_json;
using Merges = std::vector<std::pair<std::string, std::string>>;
using Ids = std::vector<int32_t>;

// The plain definition: look through all neighbours for the lowest rank, leftmost first, merge, repeat.
Ids naive_bpe(const Tokenizer& t, const Merges& merges, const std::string& piece) {
  std::vector<std::string> s;
  for (char c : piece) s.emplace_back(1, c);
  for (;;) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < s.size(); ++i) {
      for (size_t r = 0; r < best_rank; ++r) {
        if (merges[r].first == s[i] && merges[r].second == s[i + 1]) best_rank = r, best = i;
      }
    }
    if (best_rank == merges.size()) break;
    s[best] += s[best + 1];
    s.erase(s.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& token : s) {
    for (int32_t id = 3; id < t.vocab_size(); ++id) {
      if (!t.is_added(id) && t.token_bytes(id) == token) {
        ids.push_back(id);
        break;
      }
    }
  }
  return ids;
}

TEST(Tokenizer, ByteIdsFollowTheAlphabet) {
  Tokenizer t = test_tokenizer({});
  auto id = [&](const char* s, size_t n) { return t.encode({s, n}).at(0); };
  EXPECT_EQ(id("!", 1), 3);
  EXPECT_EQ(id("A", 1), 35);
  EXPECT_EQ(id("a", 1), 67);
  EXPECT_EQ(id("~", 1), 96);
  EXPECT_EQ(id("\xa1", 1), 97);
  EXPECT_EQ(id("\xae", 1), 109);
  EXPECT_EQ(id("\t", 1), 200);
  EXPECT_EQ(id("\n", 1), 201);
  EXPECT_EQ(id("\r", 1), 204);
  EXPECT_EQ(id(" ", 1), 223);
  EXPECT_EQ(id("\x7f", 1), 224);
  EXPECT_EQ(id("\x80", 1), 225);
  EXPECT_EQ(id("\xad", 1), 258);
  EXPECT_EQ(id("\0", 1), 191);
}

TEST(Tokenizer, MergesEqualTheDefinitionShortAndLong) {
  std::mt19937 rng(11);
  for (int round = 0; round < 60; ++round) {
    // A random merge table over three letters, each merge joining tokens that exist; ranks need not follow
    // length.
    Merges merges;
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (int i = 0; i < 14; ++i) {
      auto m = std::make_pair(tokens[rng() % tokens.size()], tokens[rng() % tokens.size()]);
      if (std::find(merges.begin(), merges.end(), m) != merges.end()) continue;
      if (m.first.size() + m.second.size() > 9) continue;
      merges.push_back(m);
      if (std::find(tokens.begin(), tokens.end(), m.first + m.second) == tokens.end())
        tokens.push_back(m.first + m.second);
    }
    if (round % 2 == 1) std::shuffle(merges.begin(), merges.end(), rng);
    Tokenizer t = test_tokenizer(merges);
    for (size_t n : {1u, 2u, 3u, 5u, 17u, 39u, 40u, 41u, 42u, 200u}) {
      std::string piece;
      for (size_t i = 0; i < n; ++i) piece += static_cast<char>('a' + rng() % (1 + rng() % 3));
      ASSERT_EQ(t.encode(piece), naive_bpe(t, merges, piece)) << piece;
    }
  }
}

TEST(Tokenizer, DecodeInvertsEncodeForAnyBytes) {
  Tokenizer t = test_tokenizer({{"t", "h"},
                                {"th", "e"},
                                {" ", "the"},
                                {"\xe4", "\xb8"},
                                {"\xe4\xb8", "\xad"},
                                {"\xef\xbd", "\x9c"},
                                {"\xef", "\xbd"}});
  std::mt19937 rng(5);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = rng() % 40; i > 0; --i)
      text += rng() % 2 ? static_cast<char>(rng()) : " the<｜"[rng() % 8];
    ASSERT_EQ(t.decode(t.encode(text)), text);
    ASSERT_EQ(t.decode(t.encode_with_added_tokens(text)), text);
  }
}

TEST(Tokenizer, PlainEncodeNeverMakesControlIds) {
  Tokenizer t = test_tokenizer({{"t", "h"}});
  for (const auto& added : testing::test_added_tokens()) {
    for (int32_t id : t.encode(std::string("x ") + added.text + added.text))
      EXPECT_FALSE(t.is_added(id)) << added.text;
    EXPECT_EQ(t.encode_with_added_tokens(added.text), Ids{added.id});
    EXPECT_EQ(t.added_token_id(added.text), added.id);
    EXPECT_EQ(t.token_bytes(added.id), added.text);
  }
}

TEST(Tokenizer, AddedTokensAreFoundLeftmostLongest) {
  Tokenizer t = test_tokenizer({});
  Ids ids = t.encode_with_added_tokens("a<｜User｜></think>｜DSML｜<think");
  Ids expected = t.encode("a");
  for (int id : {128803, 128822, 128825}) expected.push_back(id);
  for (int32_t id : t.encode("<think")) expected.push_back(id);
  EXPECT_EQ(ids, expected);
}

// Only the exact spellings are tokens: neither ASCII bars nor neighbours of the vocabulary's names.
TEST(Tokenizer, LookAlikesAreText) {
  Tokenizer t = testing::test_tokenizer({});
  for (const char* text : {"<|User|>", "<|Assistant|>", "<｜user｜>", "<｜User|>", "< think>", "</ think>",
                           "<THINK>", "<｜image2｜>", "<｜table｜>", "<｜place▁holder▁no▁799｜>", "|DSML|",
                           "｜dsml｜", "<｜begin_of_sentence｜>"}) {
    for (int32_t id : t.encode_with_added_tokens(text)) EXPECT_FALSE(t.is_added(id)) << text;
  }
  EXPECT_EQ(t.encode_with_added_tokens("<｜DSML｜ calls>").at(1), 128825) << "inside a longer tag it is one";
}

TEST(Tokenizer, DecodeSkipsOnlySpecialTokens) {
  Tokenizer t = test_tokenizer({});
  EXPECT_EQ(t.decode({0, 67, 128822, 1}, true), "a</think>");
  EXPECT_EQ(t.decode({0, 67}, false), "<｜begin▁of▁sentence｜>a");
  EXPECT_EQ(t.decode({-5, 67, 5000000, 100000}), "a") << "ids outside the vocabulary decode to nothing";
  EXPECT_EQ(t.vocab_size(), 129265);
}

TEST(Tokenizer, SpansJoinTextAndKeepControlApart) {
  Tokenizer t = test_tokenizer({{"\n", "\n"}, {"a", "b"}});
  auto text = [](std::string s) {
    return Span{Span::Kind::kText, Span::Origin::kClient, 0, std::move(s), 0};
  };
  auto control = [](int32_t id) { return Span{Span::Kind::kControl, Span::Origin::kTemplate, id, "", 0}; };
  // "a" + "b" join to one token; a control id between them keeps them apart.
  EXPECT_EQ(encode_spans(t, {control(0), text("a"), text("b")}), (Ids{0, t.encode("ab").at(0)}));
  EXPECT_EQ(t.encode("ab").size(), 1u);
  EXPECT_EQ(encode_spans(t, {text("a"), control(128803), text("b")}), (Ids{67, 128803, 68}));
  Span image{Span::Kind::kImage, Span::Origin::kClient, 129264, "", 206};
  EXPECT_EQ(encode_spans(t, {text("a"), image, text("b")}), (Ids{67, 129264, 68}));
  for (int32_t id : encode_spans(t, {text("<｜Us"), text("er｜>")})) EXPECT_FALSE(t.is_added(id));
}

TEST(Tokenizer, AMegabyteOfAnythingIsQuick) {
  Tokenizer t = test_tokenizer({{"a", "a"},
                                {"aa", "aa"},
                                {" ", " "},
                                {"  ", "  "},
                                {"\xcc", "\x81"},
                                {"\xcc\x81", "\xcc\x81"},
                                {"\n", "\n"},
                                {"\xe4\xb8", "\xad"},
                                {"\xe4", "\xb8"},
                                {"!", "!"}});
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\xcc\x81"), std::string("7"), std::string("中"),
        std::string("\n"), std::string(" \n"), std::string("!"), std::string("\x01"), std::string("<"),
        std::string("\xff"), std::string("é"), std::string("｜"), std::string("ー・")}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    auto start = std::chrono::steady_clock::now();
    Ids ids = t.encode(text);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // A quadratic scan of a megabyte would take minutes; the bound leaves room for sanitizers and a busy
    // machine.
    EXPECT_LT(seconds, 20) << unit;
    EXPECT_EQ(t.decode(ids), text);
  }
}

std::string replaced(std::string s, const std::string& from, const std::string& to) {
  size_t at = s.find(from);
  EXPECT_NE(at, s.npos) << from;
  return s.replace(at, from.size(), to);
}

TEST(TokenizerFile, RefusesWhatItDoesNotUnderstandAndSaysWhere) {
  const std::string good = test_tokenizer_json({{"a", "b"}});
  ASSERT_TRUE(Tokenizer::from_json(good, "f").ok());
  struct Case {
    std::string from, to, message;
  };
  for (const Case& c : std::vector<Case>{
           {R"(\\p{N}{1,3})", R"(\\p{N}{1,4})", "pretokenizers[0].pattern.Regex: unknown pattern"},
           {"一-龥", "一-龦", "pretokenizers[1].pattern.Regex"},
           {R"(\\s+(?!)", R"(\\S+(?!)", "pretokenizers[2].pattern.Regex"},
           {"Isolated", "Removed", "pretokenizers[0]"},
           {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "pretokenizers[3]"},
           {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model"},
           {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback"},
           {"\"dropout\":null", "\"dropout\":0.1", "model.dropout"},
           {"\"truncation\":null", "\"truncation\":{}", "truncation"},
           {"\"normalizers\":[]", "\"normalizers\":[{\"type\":\"NFC\"}]", "normalizer"},
           {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", "decoder"},
           {"\"merges\":[\"a b\"]", "\"merges\":[\"a z\"]", "model.merges[0]"},
           {"\"merges\":[\"a b\"]", "\"merges\":[7]", "model.merges[0]"},
           {"\"a\":67,", "", "no token for the byte 0x61"},
           {"\"a\":67,", "\"a\":68,", "given to two tokens"},
           {"\"a\":67,", "\"a\":-1,", "must have an id"},
           {"\"lstrip\":false", "\"lstrip\":true", "added_tokens[0]"},
           {"\"id\":2,", "\"id\":1,", "appears twice"},
       }) {
    Result<Tokenizer> r = Tokenizer::from_json(replaced(good, c.from, c.to), "f");
    ASSERT_FALSE(r.ok()) << c.to;
    EXPECT_EQ(r.status().code(), Code::kInvalidData);
    EXPECT_NE(r.status().message().find(c.message), std::string::npos) << r.status().message();
  }
  EXPECT_FALSE(Tokenizer::from_json("", "f").ok());
  EXPECT_FALSE(Tokenizer::from_json("[]", "f").ok());
  EXPECT_FALSE(Tokenizer::from_json(good.substr(0, good.size() / 2), "f").ok());
  EXPECT_EQ(Tokenizer::from_file("/nonexistent/tokenizer.json").status().code(), Code::kNotFound);
}

TEST(TokenizerFile, AcceptsTheOtherSpellingsInUse) {
  const std::string good = test_tokenizer_json({{"a", "b"}});
  EXPECT_TRUE(
      Tokenizer::from_json(replaced(good, "[一-龥\u3040-ゟ゠-ヿ]+",
                                    R"([\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+)"),
                           "f")
          .ok());
  EXPECT_TRUE(
      Tokenizer::from_json(replaced(good, "\"merges\":[\"a b\"]", "\"merges\":[[\"a\",\"b\"]]"), "f").ok());
  Result<Tokenizer> single = Tokenizer::from_json(test_tokenizer_json({{"1", "2"}}, DigitRule::kSingle), "f");
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(single->encode("12").size(), 2u);
}

TEST(TokenizerFile, IgnoreMergesTakesWholeTokens) {
  // "abc" is a token that the merges cannot reach: b+c comes first and a+bc is no merge.
  std::string json = test_tokenizer_json({{"b", "c"}, {"a", "b"}, {"ab", "c"}});
  Result<Tokenizer> by_merges = Tokenizer::from_json(json, "f");
  ASSERT_TRUE(by_merges.ok());
  EXPECT_EQ(by_merges->encode("abc").size(), 2u);
  Result<Tokenizer> whole = Tokenizer::from_json(
      replaced(json, "\"byte_fallback\":false", "\"byte_fallback\":false,\"ignore_merges\":true"), "f");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->encode("abc").size(), 1u);
}

}  // namespace
}  // namespace deepinfer
