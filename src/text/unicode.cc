// Table look-up and strict UTF-8 (text/unicode.h).
#include "text/unicode.h"

namespace deepinfer {
namespace {
#include "text/unicode_class.inc"
}  // namespace

CharClass char_class(uint32_t code_point) {
  uint32_t block = kClassIndex[code_point >> 7];
  uint8_t two = kClassBlocks[block * 64 + ((code_point & 127) >> 1)];
  return static_cast<CharClass>((code_point & 1) != 0 ? two >> 4 : two & 15);
}

Utf8Char decode_utf8(std::string_view bytes) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  uint32_t b0 = byte(0);
  if (b0 < 0x80) return {b0, 1, false};
  uint32_t need = b0 >= 0xc2 && b0 <= 0xdf   ? 1
                  : b0 >= 0xe0 && b0 <= 0xef ? 2
                  : b0 >= 0xf0 && b0 <= 0xf4 ? 3
                                             : 0;
  if (need == 0) return {};
  // Only the second byte has a narrower range: it excludes overlong forms, surrogates and values past
  // U+10FFFF.
  uint32_t low = b0 == 0xe0 ? 0xa0 : b0 == 0xf0 ? 0x90 : 0x80;
  uint32_t high = b0 == 0xed ? 0x9f : b0 == 0xf4 ? 0x8f : 0xbf;
  uint32_t code = b0 & (0x3fu >> need);
  for (uint32_t i = 1; i <= need; ++i) {
    if (i >= bytes.size()) return {Utf8Char::kBad, i, true};
    uint32_t b = byte(i);
    if (b < low || b > high) return {Utf8Char::kBad, i, false};
    code = code << 6 | (b & 0x3f);
    low = 0x80;
    high = 0xbf;
  }
  return {code, need + 1, false};
}

void append_utf8(uint32_t c, std::string* out) {
  if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
  auto put = [&](uint32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    Utf8Char c = decode_utf8(bytes);
    if (c.code_point == Utf8Char::kBad) {
      append_utf8(0xfffd, &out);
    } else {
      out.append(bytes.substr(0, c.size));
    }
    bytes.remove_prefix(c.size);
  }
  return out;
}

}  // namespace deepinfer
