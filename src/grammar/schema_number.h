// Numbers in a range, and multiples, as languages of decimal text without exponent. Exact for any digits.
// Source: JSON Schema 2020-12 validation 6.2. Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "grammar/char_dfa.h"
#include "grammar/json_value.h"

namespace deepinfer::grammar {

struct NumberBounds {
  bool integer = false, fractional = false;  // fractional: not an integer
  std::optional<Decimal> min, max;
  bool min_exclusive = false, max_exclusive = false;
  std::vector<Decimal> multiples;
  bool any() const { return min || max || fractional || !multiples.empty(); }
  void at_least(const Decimal& d, bool exclusive);
  void at_most(const Decimal& d, bool exclusive);
  bool contains(const Decimal& d) const;
};

// Whether an automaton for this divisor is small enough.
bool multiple_supported(const Decimal& divisor);
// Signed decimals inside the bounds: at most kMaxDigits digits before and after the point; integers without a
// point. REQUIRES multiples that are supported.
CharDfaPtr number_language(const NumberBounds& bounds, Budget* budget);

}  // namespace deepinfer::grammar
