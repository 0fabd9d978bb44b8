// Deterministic automata over code points: where languages must be combined (two patterns, a pattern and a
// length, keys other than the declared ones, numbers in a range). Every construction charges the budget; once
// that is spent the result is the empty automaton and the budget has the reason. Source: product and subset
// constructions (textbook). Threads: immutable after building.
#pragma once

#include <memory>
#include <vector>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

class CharDfa {
 public:
  struct Edge {
    uint32_t lo = 0, hi = 0, to = 0;
    bool operator==(const Edge&) const = default;
  };
  struct State {
    std::vector<Edge> edges;  // disjoint, ascending; a code point without an edge leads nowhere
    bool accept = false;
  };
  // State 0 is the start. Always trimmed: every state but the start can reach acceptance.
  std::vector<State> states;

  bool empty() const { return states.empty() || (states[0].edges.empty() && !states[0].accept); }
  bool accepts(std::string_view text) const;
};
using CharDfaPtr = std::shared_ptr<const CharDfa>;

// REQUIRES a regular expression over raw characters (kBytes are UTF-8; no rules, tokens or anchors).
CharDfaPtr dfa_of(const ExprPtr& e, Budget* budget);
CharDfaPtr dfa_any();
CharDfaPtr dfa_none();
CharDfaPtr dfa_text(std::string_view text);
CharDfaPtr dfa_texts(const std::vector<std::string>& texts, Budget* budget);
CharDfaPtr dfa_length(uint32_t min, uint32_t max, Budget* budget);
CharDfaPtr intersect(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget);
CharDfaPtr unite(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget);
CharDfaPtr subtract(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget);
// Finishes a hand-made automaton: drops states that lead nowhere, merges equivalent ones.
CharDfaPtr finish(CharDfa dfa, Budget* budget);

}  // namespace deepinfer::grammar
