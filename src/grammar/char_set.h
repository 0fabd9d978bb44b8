// Sets of Unicode scalar values as sorted ranges, and how they are spelt in bytes: raw UTF-8, or as the
// inside of a JSON string. Surrogates are never members. Source: ECMA-262 character classes; RFC 3629; RFC
// 8785 for the one JSON spelling of each character. Threads: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::grammar {

class CharSet {
 public:
  struct Range {
    uint32_t lo = 0, hi = 0;  // both inclusive
    bool operator==(const Range&) const = default;
  };

  CharSet() = default;
  static CharSet of(uint32_t lo, uint32_t hi);
  static CharSet any();                                 // every scalar value
  static CharSet of_ranges(std::vector<Range> ranges);  // in any order, surrogates left out
  void add(uint32_t lo, uint32_t hi);
  void add(const CharSet& other);
  CharSet inverted() const;
  CharSet intersect(const CharSet& other) const;
  CharSet minus(const CharSet& other) const { return intersect(other.inverted()); }
  // ASCII letters of both cases wherever one is a member.
  CharSet case_folded() const;
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  void normalise();
  std::vector<Range> ranges_;
};

// A path of byte ranges; a word is spelt by one byte from each.
struct ByteRange {
  uint8_t lo = 0, hi = 0;
};
using BytePath = std::vector<ByteRange>;

// Disjoint paths that spell exactly the members of `set` in UTF-8.
std::vector<BytePath> utf8_paths(const CharSet& set);
// Disjoint paths that spell the members inside a JSON string, one spelling per character: raw UTF-8 where
// that is legal, \" \\ \b \t \n \f \r for those, \u00xx for the other control characters.
std::vector<BytePath> json_paths(const CharSet& set);

void append_utf8(uint32_t c, std::string* out);
// Code points of UTF-8 text; an ill-formed byte counts as U+FFFD.
std::vector<uint32_t> code_points(std::string_view text);
bool valid_utf8(std::string_view text);

// Members of a Unicode general category ("L", "Lu", "Nd", long names too); false for an unknown name.
bool category_set(std::string_view name, CharSet* out);

}  // namespace deepinfer::grammar
