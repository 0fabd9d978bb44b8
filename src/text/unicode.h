// Unicode facts the text room needs: strict UTF-8 decoding and the class of a code point for the
// pre-tokeniser. Knows nothing of tokens. The class table is Unicode 16.0 (tools/gen_unicode.py says why); \s
// is Unicode White_Space. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

enum class CharClass : uint8_t { kOther, kLetter, kMark, kNumber, kPunct, kSymbol, kSpace, kNewline };

// kNewline is CR or LF only; every other White_Space code point is kSpace. REQUIRES code_point < 0x110000.
CharClass char_class(uint32_t code_point);

struct Utf8Char {
  static constexpr uint32_t kBad = 0xffffffffu;
  uint32_t code_point = kBad;  // kBad: ill-formed here
  uint32_t size = 1;           // bytes used; of an ill-formed sequence, its maximal subpart (>= 1)
  bool cut = false;  // the bytes are a proper prefix of a well-formed character and the input ends there
};

// The character at the start of `bytes`. REQUIRES a non-empty input. Surrogates, overlong forms and values
// past U+10FFFF are ill-formed (Unicode 3.9, table 3-7).
Utf8Char decode_utf8(std::string_view bytes);

// Appends the UTF-8 form; a surrogate or a value past U+10FFFF becomes U+FFFD.
void append_utf8(uint32_t code_point, std::string* out);

// The same text with each maximal ill-formed subpart replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace deepinfer
