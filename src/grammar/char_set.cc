// Range arithmetic on code points and the two byte spellings.
#include "grammar/char_set.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kMax = 0x10FFFF, kSurrogateLow = 0xD800, kSurrogateHigh = 0xDFFF;

// Splits [lo, hi], all of one UTF-8 length n, into paths: equal leading bytes are peeled off.
void split(uint32_t lo, uint32_t hi, int n, const BytePath& before, std::vector<BytePath>* out) {
  auto byte_of = [n](uint32_t c, int i) -> uint8_t {
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    uint32_t v = c >> (6 * (n - 1 - i));
    if (i == 0) return static_cast<uint8_t>(n == 1 ? v : (lead[n] | v));
    return static_cast<uint8_t>(0x80 | (v & 0x3F));
  };
  BytePath path = before;
  auto level = static_cast<int>(before.size());
  while (level < n && byte_of(lo, level) == byte_of(hi, level)) {
    path.push_back({byte_of(lo, level), byte_of(lo, level)});
    ++level;
  }
  if (level == n) {
    out->push_back(path);
    return;
  }
  uint32_t below = (1u << (6 * (n - 1 - level))) - 1;  // bits spelt by the bytes after this one
  if ((lo & below) != 0) {
    split(lo, lo | below, n, path, out);
    split((lo | below) + 1, hi, n, path, out);
    return;
  }
  if ((hi & below) != below) {
    split(lo, (hi & ~below) - 1, n, path, out);
    split(hi & ~below, hi, n, path, out);
    return;
  }
  path.push_back({byte_of(lo, level), byte_of(hi, level)});
  for (int i = level + 1; i < n; ++i) path.push_back({0x80, 0xBF});
  out->push_back(path);
}

}  // namespace

CharSet CharSet::of(uint32_t lo, uint32_t hi) {
  CharSet s;
  s.add(lo, hi);
  return s;
}

CharSet CharSet::any() {
  return of(0, kMax);
}

CharSet CharSet::of_ranges(std::vector<Range> ranges) {
  CharSet s;
  for (Range r : ranges) {
    r.hi = std::min(r.hi, kMax);
    if (r.lo > r.hi) continue;
    if (r.lo < kSurrogateLow) s.ranges_.push_back({r.lo, std::min(r.hi, kSurrogateLow - 1)});
    if (r.hi > kSurrogateHigh) s.ranges_.push_back({std::max(r.lo, kSurrogateHigh + 1), r.hi});
  }
  s.normalise();
  return s;
}

void CharSet::add(uint32_t lo, uint32_t hi) {
  hi = std::min(hi, kMax);
  if (lo > hi) return;
  if (lo < kSurrogateLow) ranges_.push_back({lo, std::min(hi, kSurrogateLow - 1)});
  if (hi > kSurrogateHigh) ranges_.push_back({std::max(lo, kSurrogateHigh + 1), hi});
  normalise();
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalise();
}

void CharSet::normalise() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.lo < b.lo; });
  std::vector<Range> merged;
  for (const Range& r : ranges_) {
    bool joins = !merged.empty() && (r.lo <= merged.back().hi + 1 ||
                                     (merged.back().hi == kSurrogateLow - 1 && r.lo == kSurrogateHigh + 1));
    // Ranges never span the surrogates, so that lengths and spellings stay simple.
    if (joins && merged.back().hi == kSurrogateLow - 1 && r.lo > kSurrogateHigh) joins = false;
    if (joins) {
      merged.back().hi = std::max(merged.back().hi, r.hi);
    } else {
      merged.push_back(r);
    }
  }
  ranges_ = std::move(merged);
}

CharSet CharSet::inverted() const {
  std::vector<Range> out;
  uint32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.lo > next) out.push_back({next, r.lo - 1});
    next = r.hi + 1;
  }
  if (next <= kMax) out.push_back({next, kMax});
  return of_ranges(std::move(out));
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    uint32_t lo = std::max(ranges_[i].lo, other.ranges_[j].lo),
             hi = std::min(ranges_[i].hi, other.ranges_[j].hi);
    if (lo <= hi) out.ranges_.push_back({lo, hi});
    (ranges_[i].hi < other.ranges_[j].hi) ? ++i : ++j;
  }
  out.normalise();
  return out;
}

CharSet CharSet::case_folded() const {
  CharSet out = *this;
  CharSet upper = intersect(of('A', 'Z')), lower = intersect(of('a', 'z'));
  for (const Range& r : upper.ranges_) out.add(r.lo + 32, r.hi + 32);
  for (const Range& r : lower.ranges_) out.add(r.lo - 32, r.hi - 32);
  return out;
}

bool CharSet::contains(uint32_t c) const {
  auto it = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                             [](uint32_t v, const Range& r) { return v < r.lo; });
  return it != ranges_.begin() && c <= std::prev(it)->hi;
}

std::vector<BytePath> utf8_paths(const CharSet& set) {
  static constexpr uint32_t last_of_length[] = {0x7F, 0x7FF, 0xFFFF, kMax};
  std::vector<BytePath> out;
  for (CharSet::Range r : set.ranges()) {
    for (int n = 1; n <= 4 && r.lo <= r.hi; ++n) {
      uint32_t last = last_of_length[n - 1];
      if (r.lo > last) continue;
      split(r.lo, std::min(r.hi, last), n, {}, &out);
      if (r.hi <= last) break;
      r.lo = last + 1;
    }
  }
  return out;
}

std::vector<BytePath> json_paths(const CharSet& set) {
  CharSet raw = set;
  CharSet special = CharSet::of(0, 0x1F);
  special.add('"', '"');
  special.add('\\', '\\');
  std::vector<BytePath> out = utf8_paths(set.minus(special));
  static constexpr std::pair<uint32_t, char> shorts[] = {{'"', '"'}, {'\\', '\\'}, {8, 'b'}, {9, 't'},
                                                         {10, 'n'},  {12, 'f'},    {13, 'r'}};
  auto one = [](char c) { return ByteRange{static_cast<uint8_t>(c), static_cast<uint8_t>(c)}; };
  CharSet rest = set.intersect(CharSet::of(0, 0x1F));
  for (auto [c, letter] : shorts) {
    if (set.contains(c)) out.push_back({one('\\'), one(letter)});
    rest = rest.minus(CharSet::of(c, c));
  }
  for (CharSet::Range r : rest.ranges()) {
    for (uint32_t c = r.lo; c <= r.hi; ++c)
      out.push_back({one('\\'), one('u'), one('0'), one('0'), one(c < 16 ? '0' : '1'),
                     one("0123456789abcdef"[c & 15])});
  }
  return out;
}

void append_utf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else if (c < 0x800) {
    *out += static_cast<char>(0xC0 | (c >> 6));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *out += static_cast<char>(0xE0 | (c >> 12));
    *out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | (c >> 18));
    *out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    *out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

namespace {

// Length of the well-formed sequence at `i`, 0 if there is none; the code point in *c.
int sequence_at(std::string_view s, size_t i, uint32_t* c) {
  auto at = [&](size_t k) -> uint32_t { return k < s.size() ? static_cast<uint8_t>(s[k]) : 0; };
  auto tail = [](uint32_t b) { return (b & 0xC0) == 0x80; };
  uint32_t b = at(i);
  if (b < 0x80) return *c = b, 1;
  if (b >= 0xC2 && b < 0xE0 && tail(at(i + 1))) return *c = (b & 0x1F) << 6 | (at(i + 1) & 0x3F), 2;
  if (b >= 0xE0 && b < 0xF0 && tail(at(i + 1)) && tail(at(i + 2))) {
    *c = (b & 0xF) << 12 | (at(i + 1) & 0x3F) << 6 | (at(i + 2) & 0x3F);
    return *c < 0x800 || (*c >= kSurrogateLow && *c <= kSurrogateHigh) ? 0 : 3;
  }
  if (b >= 0xF0 && b < 0xF5 && tail(at(i + 1)) && tail(at(i + 2)) && tail(at(i + 3))) {
    *c = (b & 7) << 18 | (at(i + 1) & 0x3F) << 12 | (at(i + 2) & 0x3F) << 6 | (at(i + 3) & 0x3F);
    return *c < 0x10000 || *c > kMax ? 0 : 4;
  }
  return 0;
}

}  // namespace

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    uint32_t c = 0xFFFD;
    int n = sequence_at(text, i, &c);
    out.push_back(n == 0 ? 0xFFFD : c);
    i += static_cast<size_t>(std::max(n, 1));
  }
  return out;
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    uint32_t c = 0;
    int n = sequence_at(text, i, &c);
    if (n == 0) return false;
    i += static_cast<size_t>(n);
  }
  return true;
}

namespace {

struct CategoryRange {
  uint32_t lo, hi;
  char major, minor;
};
constexpr CategoryRange kCategories[] = {
#include "grammar/unicode_category.inc"
};

struct LongName {
  std::string_view name, abbreviation;
};
constexpr LongName kLongNames[] = {{"Letter", "L"},
                                   {"Uppercase_Letter", "Lu"},
                                   {"Lowercase_Letter", "Ll"},
                                   {"Titlecase_Letter", "Lt"},
                                   {"Modifier_Letter", "Lm"},
                                   {"Other_Letter", "Lo"},
                                   {"Mark", "M"},
                                   {"Nonspacing_Mark", "Mn"},
                                   {"Spacing_Mark", "Mc"},
                                   {"Enclosing_Mark", "Me"},
                                   {"Number", "N"},
                                   {"Decimal_Number", "Nd"},
                                   {"Letter_Number", "Nl"},
                                   {"Other_Number", "No"},
                                   {"Punctuation", "P"},
                                   {"Symbol", "S"},
                                   {"Math_Symbol", "Sm"},
                                   {"Currency_Symbol", "Sc"},
                                   {"Modifier_Symbol", "Sk"},
                                   {"Other_Symbol", "So"},
                                   {"Separator", "Z"},
                                   {"Space_Separator", "Zs"},
                                   {"Line_Separator", "Zl"},
                                   {"Paragraph_Separator", "Zp"},
                                   {"Other", "C"},
                                   {"Control", "Cc"},
                                   {"Format", "Cf"},
                                   {"Connector_Punctuation", "Pc"},
                                   {"Dash_Punctuation", "Pd"},
                                   {"Open_Punctuation", "Ps"},
                                   {"Close_Punctuation", "Pe"},
                                   {"Initial_Punctuation", "Pi"},
                                   {"Final_Punctuation", "Pf"},
                                   {"Other_Punctuation", "Po"},
                                   {"Private_Use", "Co"},
                                   {"Unassigned", "Cn"},
                                   {"digit", "Nd"},
                                   {"punct", "P"}};

}  // namespace

bool category_set(std::string_view name, CharSet* out) {
  for (std::string_view prefix : {"General_Category=", "gc="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name == "Any") return *out = CharSet::any(), true;
  if (name == "ASCII") return *out = CharSet::of(0, 0x7F), true;
  for (const LongName& l : kLongNames) {
    if (l.name == name) name = l.abbreviation;
  }
  bool unassigned = name == "Cn" || name == "C";
  if (name.size() > 2 || name.empty()) return false;
  std::vector<CharSet::Range> members, assigned;
  for (const CategoryRange& r : kCategories) {
    if (r.major == name[0] && (name.size() == 1 || r.minor == name[1])) members.push_back({r.lo, r.hi});
    if (unassigned) assigned.push_back({r.lo, r.hi});
  }
  CharSet found = CharSet::of_ranges(std::move(members));
  if (unassigned) found.add(CharSet::of_ranges(std::move(assigned)).inverted());
  if (found.empty()) return false;
  *out = found;
  return true;
}

}  // namespace deepinfer::grammar
