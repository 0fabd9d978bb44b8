// The scanner of text/pretokenizer.h: pattern 3, with the first two splits folded into what it calls the end
// of a segment.
#include "text/pretokenizer.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace deepinfer {
namespace {

// Classes as pattern 3 sees them. The first two splits are folded in: a character that belongs to another
// segment is kEnd, so every rule of pattern 3 stops there exactly as it would at the end of its piece.
enum Kind : uint8_t { kOther, kWord, kSign, kSpace, kNewline, kEnd };
enum class Segment { kPlain, kCjk };

struct Char {
  Kind kind;
  uint32_t size;
};

bool is_cjk(uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

Kind fold(CharClass c) {
  switch (c) {
    case CharClass::kLetter:
    case CharClass::kMark:
      return kWord;
    case CharClass::kPunct:
    case CharClass::kSymbol:
      return kSign;
    case CharClass::kSpace:
      return kSpace;
    case CharClass::kNewline:
      return kNewline;
    case CharClass::kNumber:
      return kEnd;
    case CharClass::kOther:
      break;
  }
  return kOther;
}

// ASCII without a decode: index by byte value.
const std::array<Kind, 128>& ascii_kinds() {
  static const std::array<Kind, 128> table = [] {
    std::array<Kind, 128> t{};
    for (uint32_t c = 0; c < 128; ++c) t[c] = fold(char_class(c));
    return t;
  }();
  return table;
}

bool is_ascii_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}
bool is_ascii_punct(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

template <Segment kSegment>
struct Matcher {
  const char* end;
  const std::array<Kind, 128>& ascii = ascii_kinds();

  Char at(const char* p) const {
    if (p == end) return {kEnd, 0};
    uint8_t b = static_cast<uint8_t>(*p);
    if (b < 0x80) return {kSegment == Segment::kPlain ? ascii[b] : kEnd, 1};
    Utf8Char c = decode_utf8({p, static_cast<size_t>(end - p)});
    if (c.code_point == Utf8Char::kBad) return {kSegment == Segment::kPlain ? kOther : kEnd, c.size};
    if (is_cjk(c.code_point) != (kSegment == Segment::kCjk)) return {kEnd, c.size};
    return {fold(char_class(c.code_point)), c.size};
  }

  const char* run(const char* p, Kind kind) const {
    for (;;) {
      Char c = at(p);
      if (c.kind != kind) return p;
      p += c.size;
    }
  }

  // Rules 4 to 6 of the specification's table, for a white-space run starting at p.
  const char* white_space(const char* p) const {
    const char* newline_end = nullptr;
    const char* last = p;
    const char* q = p;
    Char c = at(q);
    while (c.kind == kSpace || c.kind == kNewline) {
      last = q;
      q += c.size;
      if (c.kind == kNewline) newline_end = q;
      c = at(q);
    }
    if (newline_end != nullptr) return newline_end;
    // The last space of a longer run is left for the word that follows; at the end of the segment there is
    // none.
    return c.kind == kEnd || last == p ? q : last;
  }

  // End of the piece of pattern 3 that starts at p. REQUIRES at(p).kind != kEnd.
  const char* piece(const char* p) const {
    Char c = at(p);
    const char* n = p + c.size;
    if (kSegment == Segment::kPlain && is_ascii_punct(*p) && n != end && is_ascii_letter(*n)) {
      do ++n;
      while (n != end && is_ascii_letter(*n));
      return n;
    }
    if (c.kind == kWord) return run(n, kWord);
    if (c.kind == kSign) return run(run(n, kSign), kNewline);
    if (c.kind == kNewline) return white_space(p);
    Char second = at(n);
    if (second.kind == kWord) return run(n + second.size, kWord);
    if (c.kind == kSpace) {
      if (*p == ' ' && second.kind == kSign) return run(run(n + second.size, kSign), kNewline);
      return white_space(p);
    }
    // Nothing matches here: the text between two matches is one piece.
    while (second.kind == kOther) {
      Char third = at(n + second.size);
      if (third.kind == kWord) break;
      n += second.size;
      second = third;
    }
    return n;
  }
};

// End of the digit group at p, or p if there is none. `first` is the decoded character at p.
const char* digits(const char* p, const char* end, int limit) {
  for (int i = 0; i < limit && p != end; ++i) {
    Utf8Char c = decode_utf8({p, static_cast<size_t>(end - p)});
    if (c.code_point == Utf8Char::kBad || char_class(c.code_point) != CharClass::kNumber) break;
    p += c.size;
  }
  return p;
}

}  // namespace

bool PieceScanner::next(std::string_view* piece) {
  if (p_ == end_) return false;
  const char* start = p_;
  Matcher<Segment::kPlain> plain{end_};
  if (plain.at(start).kind != kEnd) {
    p_ = plain.piece(start);
  } else {
    // CJK and digits exclude each other: no code point of the CJK ranges is a number.
    Matcher<Segment::kCjk> cjk{end_};
    p_ = cjk.at(start).kind != kEnd ? cjk.piece(start)
                                    : digits(start, end_, rule_ == DigitRule::kSingle ? 1 : 3);
  }
  *piece = {start, static_cast<size_t>(p_ - start)};
  return true;
}

}  // namespace deepinfer
