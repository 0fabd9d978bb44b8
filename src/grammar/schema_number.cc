// Digit by digit comparison with a bound, and remainders, as automata.
#include "grammar/schema_number.h"

#include <array>

#include "grammar/common_rules.h"

namespace deepinfer::grammar {
namespace {

enum class Side { kLess, kEqual, kGreater };

// Unsigned decimals whose comparison with `bound` satisfies `wanted` (less, equal, greater as three bits).
class Comparison {
 public:
  Comparison(const Decimal& bound, unsigned wanted) : wanted_(wanted) {
    int_ = bound.integer_part();
    if (int_.empty()) int_ = "0";
    frac_ = bound.fraction_part();
  }

  CharDfaPtr build(Budget* budget) {
    CharDfa& d = dfa_;
    add(false);
    // After the point, once the order is known: first digit still to come, then any digits.
    for (Side s : {Side::kLess, Side::kEqual, Side::kGreater}) {
      size_t i = static_cast<size_t>(s);
      dot_[i] = add(false);
      tail_[i] = add(ok(s));
      edge(dot_[i], '0', '9', tail_[i]);
      edge(tail_[i], '0', '9', tail_[i]);
    }
    fraction_of_equals();
    // Integer digits: (how many, order so far); longer than the bound: greater.
    uint32_t longer = add(ok(Side::kGreater));
    edge(longer, '.', '.', dot_[2]);
    edge(longer, '0', '9', longer);
    size_t n = int_.size();
    std::vector<std::array<uint32_t, 3>> at(n + 1);
    for (size_t len = 1; len <= n; ++len) {
      for (size_t s = 0; s < 3; ++s) {
        Side side = len < n ? Side::kLess : static_cast<Side>(s);
        Side whole = side == Side::kEqual && !frac_.empty() ? Side::kLess : side;
        at[len][s] = add(ok(whole));
        edge(at[len][s], '.', '.', side == Side::kEqual ? equals_ : dot_[static_cast<size_t>(side)]);
      }
    }
    for (size_t len = 1; len <= n; ++len) {
      for (size_t s = 0; s < 3; ++s) {
        for (char c = '0'; c <= '9'; ++c)
          edge(at[len][s], c, c, len == n ? longer : at[len + 1][order(static_cast<Side>(s), c, int_[len])]);
      }
    }
    for (char c = '1'; c <= '9'; ++c) edge(0, c, c, at[1][order(Side::kEqual, c, int_[0])]);
    // "0" takes no further integer digits.
    Side zero = n > 1 ? Side::kLess : static_cast<Side>(order(Side::kEqual, '0', int_[0]));
    uint32_t z = add(ok(zero == Side::kEqual && !frac_.empty() ? Side::kLess : zero));
    edge(z, '.', '.', zero == Side::kEqual ? equals_ : dot_[static_cast<size_t>(zero)]);
    d.states[0].edges.insert(d.states[0].edges.begin(), {'0', '0', z});
    return finish(std::move(dfa_), budget);
  }

 private:
  bool ok(Side s) const { return (wanted_ >> static_cast<unsigned>(s) & 1) != 0; }
  uint32_t add(bool accept) {
    dfa_.states.push_back({{}, accept});
    return static_cast<uint32_t>(dfa_.states.size() - 1);
  }
  void edge(uint32_t from, char lo, char hi, uint32_t to) {
    auto& e = dfa_.states[from].edges;
    CharDfa::Edge made{static_cast<uint32_t>(lo), static_cast<uint32_t>(hi), to};
    auto it = e.begin();
    while (it != e.end() && it->lo < made.lo) ++it;
    e.insert(it, made);
  }
  static size_t order(Side before, char c, char bound) {
    if (before != Side::kEqual) return static_cast<size_t>(before);
    return c < bound ? 0 : c > bound ? 2 : 1;
  }
  void fraction_of_equals() {
    std::vector<uint32_t> e;
    for (size_t j = 0; j <= frac_.size(); ++j)
      e.push_back(add(j > 0 && ok(j < frac_.size() ? Side::kLess : Side::kEqual)));
    equals_ = e[0];
    for (size_t j = 0; j < frac_.size(); ++j) {
      for (char c = '0'; c <= '9'; ++c) {
        size_t o = order(Side::kEqual, c, frac_[j]);
        edge(e[j], c, c, o == 1 ? e[j + 1] : tail_[o]);
      }
    }
    // Beyond the bound's digits only zeros keep it equal.
    uint32_t zeros = frac_.empty() ? add(ok(Side::kEqual)) : e.back();
    edge(e.back(), '0', '0', zeros);
    edge(e.back(), '1', '9', tail_[2]);
    if (frac_.empty()) {
      edge(zeros, '0', '0', zeros);
      edge(zeros, '1', '9', tail_[2]);
    }
  }

  unsigned wanted_;
  std::string int_, frac_;
  CharDfa dfa_;
  uint32_t dot_[3] = {}, tail_[3] = {}, equals_ = 0;
};

CharDfaPtr unsigned_shape(bool integer, bool fractional, Budget* budget) {
  auto digits = [](char lo, char hi) {
    return make_class(CharSet::of(static_cast<uint8_t>(lo), static_cast<uint8_t>(hi)), Spelling::kRaw);
  };
  ExprPtr whole = make_alt(
      {make_bytes("0"), make_seq({digits('1', '9'), make_repeat(digits('0', '9'), 0, kMaxDigits - 1)})});
  if (integer) return dfa_of(whole, budget);
  ExprPtr fraction = make_seq({make_bytes("."), make_repeat(digits('0', '9'), 1, kMaxDigits)});
  CharDfaPtr all = dfa_of(make_seq({whole, make_repeat(fraction, 0, 1)}), budget);
  if (!fractional) return all;
  ExprPtr any = make_repeat(digits('0', '9'), 0, kUnbounded);
  return intersect(all, dfa_of(make_seq({whole, make_bytes("."), any, digits('1', '9'), any}), budget),
                   budget);
}

// m = p / 10^d; false if the automaton would be too large.
bool split(const Decimal& m, uint64_t* p, size_t* d) {
  *d = static_cast<size_t>(std::max<int64_t>(0, -m.exponent));
  if (*d > 40 || m.exponent > 6) return false;
  std::string digits = m.digits + std::string(static_cast<size_t>(std::max<int64_t>(0, m.exponent)), '0');
  if (digits.empty() || digits.size() > 6) return false;
  *p = std::stoull(digits);
  return *p * (*d + 2) <= 40'000;
}

CharDfaPtr multiple_language(const Decimal& m, Budget* budget) {
  size_t d = 0;
  uint64_t p = 0;
  if (!split(m, &p, &d)) {
    budget->fail(Status(Code::kUnsupported, "multipleOf is too large for an automaton"));
    return dfa_none();
  }
  std::vector<uint64_t> scale(d + 1, 1);  // 10^k mod p
  for (size_t k = 1; k <= d; ++k) scale[k] = scale[k - 1] * 10 % p;
  // States: start, integer part by remainder, point and fraction by (digits, remainder), zeros only.
  CharDfa dfa;
  auto whole = [](uint64_t r) { return static_cast<uint32_t>(1 + r); };
  auto frac = [p](size_t j, uint64_t r) { return static_cast<uint32_t>(1 + p + j * p + r); };
  uint32_t zeros = frac(d + 1, 0);
  if (!budget->spend_states(zeros)) return dfa_none();
  dfa.states.resize(zeros + 1);
  auto digit_edges = [&](uint32_t from, auto target) {
    for (uint32_t c = '0'; c <= '9'; ++c) dfa.states[from].edges.push_back({c, c, target(c - '0')});
  };
  digit_edges(0, [&](uint64_t c) { return whole(c % p); });
  for (uint64_t r = 0; r < p; ++r) {
    dfa.states[whole(r)].accept = r * scale[d] % p == 0;
    dfa.states[whole(r)].edges.push_back({'.', '.', frac(0, r)});
    digit_edges(whole(r), [&](uint64_t c) { return whole((r * 10 + c) % p); });
    for (size_t j = 0; j <= d; ++j) {
      dfa.states[frac(j, r)].accept = j > 0 && r * scale[d - j] % p == 0;
      if (j < d) {
        digit_edges(frac(j, r), [&](uint64_t c) { return frac(j + 1, (r * 10 + c) % p); });
      } else if (r == 0) {
        dfa.states[frac(j, r)].edges.push_back({'0', '0', zeros});
      }
    }
  }
  dfa.states[zeros].accept = true;
  dfa.states[zeros].edges.push_back({'0', '0', zeros});
  return finish(std::move(dfa), budget);
}

bool is_multiple(const Decimal& v, const Decimal& m) {
  // Both scaled to integers; remainder digit by digit.
  if (v.is_zero()) return true;
  int64_t e = std::min(v.exponent, m.exponent);
  std::string a = v.digits + std::string(static_cast<size_t>(v.exponent - e), '0');
  std::string b = m.digits + std::string(static_cast<size_t>(m.exponent - e), '0');
  if (b.size() > 18) return a == b;
  uint64_t p = std::stoull(b);
  uint64_t r = 0;  // p has at most 18 digits, so r * 10 + 9 fits
  for (char c : a) r = (r * 10 + static_cast<uint64_t>(c - '0')) % p;
  return r == 0;
}

}  // namespace

bool multiple_supported(const Decimal& divisor) {
  uint64_t p = 0;
  size_t d = 0;
  return split(divisor, &p, &d);
}

void NumberBounds::at_least(const Decimal& d, bool exclusive) {
  int c = min ? compare(d, *min) : 1;
  if (c > 0) min = d, min_exclusive = exclusive;
  if (c == 0) min_exclusive = min_exclusive || exclusive;
}
void NumberBounds::at_most(const Decimal& d, bool exclusive) {
  int c = max ? compare(d, *max) : -1;
  if (c < 0) max = d, max_exclusive = exclusive;
  if (c == 0) max_exclusive = max_exclusive || exclusive;
}
bool NumberBounds::contains(const Decimal& d) const {
  if ((integer && !d.is_integer()) || (fractional && d.is_integer())) return false;
  if (min && (compare(d, *min) < 0 || (min_exclusive && compare(d, *min) == 0))) return false;
  if (max && (compare(d, *max) > 0 || (max_exclusive && compare(d, *max) == 0))) return false;
  for (const Decimal& m : multiples) {
    if (!is_multiple(d, m)) return false;
  }
  return true;
}

CharDfaPtr number_language(const NumberBounds& bounds, Budget* budget) {
  constexpr unsigned kLess = 1, kEqual = 2, kGreater = 4;
  CharDfaPtr shape = unsigned_shape(bounds.integer, bounds.fractional, budget);
  for (const Decimal& m : bounds.multiples) shape = intersect(shape, multiple_language(m, budget), budget);
  CharDfaPtr plus = shape, minus = shape;
  auto restrict_to = [&](CharDfaPtr* side, const Decimal& bound, unsigned wanted) {
    *side = intersect(*side, Comparison(bound, wanted).build(budget), budget);
  };
  if (bounds.min) {
    unsigned equal = bounds.min_exclusive ? 0 : kEqual;
    bool negative = bounds.min->negative && !bounds.min->is_zero();
    if (negative) {
      restrict_to(&minus, *bounds.min, kLess | equal);
    } else {
      minus = dfa_none();
      restrict_to(&plus, *bounds.min, kGreater | equal);
    }
  }
  if (bounds.max) {
    unsigned equal = bounds.max_exclusive ? 0 : kEqual;
    bool negative = bounds.max->negative && !bounds.max->is_zero();
    if (negative || (bounds.max->is_zero() && bounds.max_exclusive)) {
      plus = dfa_none();
      restrict_to(&minus, *bounds.max, kGreater | equal);
    } else {
      restrict_to(&plus, *bounds.max, kLess | equal);
    }
  }
  return dfa_of(make_alt({make_dfa(plus, Spelling::kRaw),
                          make_seq({make_bytes("-"), make_dfa(minus, Spelling::kRaw)})}),
                budget);
}

}  // namespace deepinfer::grammar
