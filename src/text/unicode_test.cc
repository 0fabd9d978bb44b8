// Classes, UTF-8 edge cases of the Unicode tables, and the incremental assembler.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.h"

namespace deepinfer {
namespace {

TEST(Unicode, ClassesOfWellKnownCharacters) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x0301), CharClass::kMark);
  EXPECT_EQ(char_class(0x0665), CharClass::kNumber);  // Arabic-Indic five
  EXPECT_EQ(char_class(0x00bd), CharClass::kNumber);  // one half
  EXPECT_EQ(char_class(0xff5c), CharClass::kSymbol);  // the bar of the control tokens
  EXPECT_EQ(char_class(0x30fb), CharClass::kPunct);   // katakana middle dot
  EXPECT_EQ(char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(char_class(0x0085), CharClass::kSpace);
  EXPECT_EQ(char_class(0x200b), CharClass::kOther);  // zero-width space is no White_Space
  EXPECT_EQ(char_class(0x180e), CharClass::kOther);
  EXPECT_EQ(char_class('\n'), CharClass::kNewline);
  EXPECT_EQ(char_class(0x10ffff), CharClass::kOther);
  EXPECT_EQ(char_class(0x10d4a), CharClass::kLetter);  // Garay, new in Unicode 16
}

TEST(Unicode, DecodesEveryCodePointAndRefusesSurrogates) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string s;
    append_utf8(c, &s);
    Utf8Char d = decode_utf8(s);
    ASSERT_EQ(d.code_point, c);
    ASSERT_EQ(d.size, s.size());
    for (size_t n = 1; n < s.size(); ++n) ASSERT_TRUE(decode_utf8(s.substr(0, n)).cut) << c;
  }
  EXPECT_EQ(decode_utf8("\xed\xa0\x80").code_point, Utf8Char::kBad);
}

// The examples of Unicode 3.9, tables 3-8 to 3-11.
TEST(Unicode, OneReplacementPerMaximalSubpart) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(to_valid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
}

TEST(Utf8Assembler, AnyCutGivesTheWholeTextAndHoldsAtMostThreeBytes) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) {
      if (rng() % 4 == 0) {
        bytes += static_cast<char>(rng());
      } else {
        const uint32_t tops[] = {0x80, 0x800, 0x10000, 0x110000};
        append_utf8(static_cast<uint32_t>(rng()) % tops[rng() % 4], &bytes);
      }
    }
    const std::string whole = to_valid_utf8(bytes);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Utf8Assembler a;
      std::string out = a.push(bytes.substr(0, cut));
      ASSERT_LE(a.held(), 3u);
      out += a.push(bytes.substr(cut));
      out += a.flush();
      ASSERT_EQ(out, whole);
    }
    Utf8Assembler a;
    std::string out;
    for (char c : bytes) {
      out += a.push(std::string(1, c));
      ASSERT_LE(a.held(), 3u);
    }
    ASSERT_EQ(out + a.flush(), whole);
    ASSERT_EQ(a.held(), 0u);
  }
}

TEST(Utf8Assembler, ReleasesACharacterWithItsLastByte) {
  Utf8Assembler a;
  EXPECT_EQ(a.push("\xf0\x9f"), "");
  EXPECT_EQ(a.push("\x98"), "");
  EXPECT_EQ(a.push("\x80!"), "😀!");
  // A byte that can no longer become valid is released at once.
  EXPECT_EQ(a.push("\xff"), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace deepinfer
