// Oracle: the published patterns, run one after the other by PCRE2. PCRE2 knows an older Unicode than our
// tables, so the random alphabet keeps the code points both agree on, and a test says that the others are
// characters PCRE2 does not know yet.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include <gtest/gtest.h>
#include <pcre2.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace deepinfer {
namespace {

class Regex {
 public:
  explicit Regex(const std::string& pattern) {
    int code;
    PCRE2_SIZE at;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                          &code, &at, nullptr);
    EXPECT_NE(code_, nullptr) << pattern << " at " << at;
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Regex() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Isolating split: matches and the text between them.
  std::vector<std::string> split(const std::string& text) const {
    std::vector<std::string> out;
    size_t from = 0;
    while (from < text.size() && pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                             from, PCRE2_NO_UTF_CHECK, match_, nullptr) > 0) {
      PCRE2_SIZE* v = pcre2_get_ovector_pointer(match_);
      if (v[0] > from) out.push_back(text.substr(from, v[0] - from));
      out.push_back(text.substr(v[0], v[1] - v[0]));
      from = v[1];
    }
    if (from < text.size()) out.push_back(text.substr(from));
    return out;
  }
  bool matches(const std::string& text) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, PCRE2_NO_UTF_CHECK,
                       match_, nullptr) > 0;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

// PCRE2's own \s has U+180E besides White_Space, so the class is spelt out.
const std::string kWs =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
const std::string kRest =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|[)" +
    kWs + R"(]*[\r\n]+|[)" + kWs + R"(]+(?![^)" + kWs + R"(])|[)" + kWs + "]+";

std::vector<std::string> oracle(const std::string& text, DigitRule rule) {
  static const Regex three(R"(\p{N}{1,3})"), one(R"(\p{N})"),
      cjk(R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)"), rest(kRest);
  std::vector<std::string> out;
  for (const std::string& a : (rule == DigitRule::kSingle ? one : three).split(text)) {
    for (const std::string& b : cjk.split(a)) {
      for (std::string& c : rest.split(b)) out.push_back(std::move(c));
    }
  }
  return out;
}

std::vector<std::string> ours(const std::string& text, DigitRule rule) {
  std::vector<std::string> out;
  PieceScanner scanner(text, rule);
  std::string_view piece;
  while (scanner.next(&piece)) out.emplace_back(piece);
  return out;
}

class Alphabet {
 public:
  bool agrees(uint32_t c) const {
    std::string s;
    append_utf8(c, &s);
    CharClass k = char_class(c);
    return letter_.matches(s) == (k == CharClass::kLetter) && mark_.matches(s) == (k == CharClass::kMark) &&
           number_.matches(s) == (k == CharClass::kNumber) && punct_.matches(s) == (k == CharClass::kPunct) &&
           symbol_.matches(s) == (k == CharClass::kSymbol);
  }
  bool unassigned(uint32_t c) const {
    std::string s;
    append_utf8(c, &s);
    return unassigned_.matches(s);
  }

 private:
  Regex letter_{R"(^\p{L})"}, mark_{R"(^\p{M})"}, number_{R"(^\p{N})"}, punct_{R"(^\p{P})"},
      symbol_{R"(^\p{S})"}, unassigned_{R"(^\p{Cn})"};
};

TEST(Pretokenizer, ClassTableEqualsPcre2WhereItKnowsTheCharacter) {
  Alphabet alphabet;
  int differ = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xd800 && c < 0xe000) || alphabet.agrees(c)) continue;
    ++differ;
    ASSERT_TRUE(alphabet.unassigned(c)) << std::hex << c;
  }
  // Characters added to Unicode between the two versions; far fewer than there are letters.
  EXPECT_LT(differ, 15000);
}

uint32_t draw(std::mt19937& rng) {
  static const std::u32string pool =
      U"abzAZ  "
      U"\t\n\r\r\n.,!?'\"{}[]()<>|`~_-+=*/"
      U"\\#@019०٣½Ⅷ²中文字龥龦一ぁんー゛゙・゠ァｱ한글\u0301\u0300\u200b\u200d\u00a0\u3000\u2028\u0085\v\f\u0001"
      U"\u007féßΩЖ；：，。｜▁€£😀👍🏽\ufe0f𝟘𐒠";
  switch (rng() % 8) {
    case 0:
      return rng() % 0x80;
    case 1:
      return rng() % 0x3100;
    case 2:
      return rng() % 0x20000;
    case 3:
      return 0x3030 + rng() % 0xe0;
    default:
      return pool[rng() % pool.size()];
  }
}

TEST(Pretokenizer, EqualsThePatternsOnRandomUnicode) {
  Alphabet alphabet;
  std::mt19937 rng(1);
  for (int round = 0; round < 60000; ++round) {
    std::string text;
    size_t n = 1 + rng() % 24;
    uint32_t previous = 'a';
    for (size_t i = 0; i < n; ++i) {
      uint32_t c = rng() % 3 == 0 ? previous : draw(rng);  // runs matter
      if ((c >= 0xd800 && c < 0xe000) || !alphabet.agrees(c)) c = ' ';
      append_utf8(c, &text);
      previous = c;
    }
    for (DigitRule rule : {DigitRule::kUpToThree, DigitRule::kSingle})
      ASSERT_EQ(ours(text, rule), oracle(text, rule)) << text;
  }
}

TEST(Pretokenizer, EqualsThePatternsOnEveryShortStringOfOnePerClass) {
  const std::u32string one_each = U"a1 \n\r\t.中ー・\u0301\u0001\u00a0é😀";
  std::vector<uint32_t> digits(5);
  size_t total = 1;
  for (size_t i = 0; i < digits.size(); ++i) total *= one_each.size();
  for (size_t k = 0; k < total; k += 7) {
    std::string text;
    for (size_t rest = k, i = 0; i < digits.size(); ++i, rest /= one_each.size())
      append_utf8(one_each[rest % one_each.size()], &text);
    ASSERT_EQ(ours(text, DigitRule::kUpToThree), oracle(text, DigitRule::kUpToThree)) << text;
  }
}

using Pieces = std::vector<std::string>;

TEST(Pretokenizer, ConsequencesNamedByTheSpecification) {
  auto p = [](const std::string& s) { return ours(s, DigitRule::kUpToThree); };
  EXPECT_EQ(p(" 12"), (Pieces{" ", "12"}));
  EXPECT_EQ(p("1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(p("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(p("x   7"), (Pieces{"x", "   ", "7"}));
  EXPECT_EQ(p("end.\n\nNext"), (Pieces{"end", ".\n\n", "Next"}));
  EXPECT_EQ(p("a.json"), (Pieces{"a", ".json"}));
  EXPECT_EQ(p("中文abc"), (Pieces{"中文", "abc"}));
  EXPECT_EQ(p(" \n \n  x"), (Pieces{" \n \n", " ", " x"}));
  EXPECT_EQ(p("\x01\x02"), (Pieces{"\x01\x02"}));
  EXPECT_EQ(p("\x01 a"), (Pieces{"\x01", " a"}));
  EXPECT_EQ(ours("123", DigitRule::kSingle), (Pieces{"1", "2", "3"}));
  EXPECT_EQ(p(""), Pieces{});
}

TEST(Pretokenizer, IllFormedBytesAreKeptInOrder) {
  std::mt19937 rng(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = rng() % 16; i > 0; --i) text += static_cast<char>(rng());
    std::string joined;
    for (const std::string& piece : ours(text, DigitRule::kUpToThree)) {
      ASSERT_FALSE(piece.empty());
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace deepinfer
