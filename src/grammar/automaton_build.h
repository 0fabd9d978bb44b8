// The halfway stage of automaton.h: each rule's own automaton, before pruning over all rules. Private to the
// room. Threads: plain data.
#pragma once

#include <string>
#include <vector>

#include "grammar/automaton.h"

namespace deepinfer::grammar {

struct BuiltState {
  std::vector<ByteEdge> bytes;  // disjoint, ascending
  std::vector<CallEdge> calls;  // one per rule
  std::vector<TokenEdge> tokens;
  bool accept = false;
  bool operator==(const BuiltState&) const = default;
};

struct BuiltRule {
  std::string name;
  Rule::Kind kind = Rule::Kind::kBody;
  std::vector<BuiltState> states;  // 0 is the start: nothing leads back to it, and it does not accept
  bool nullable = false, productive = false;
  uint32_t min = 0, max = kUnbounded;
  LoopRule loop;
  MembersRule members;
};

// Every rule of the grammar and the auxiliary ones behind them (counted repetitions).
Result<std::vector<BuiltRule>> build_rules(const Grammar& grammar, Budget* budget);

}  // namespace deepinfer::grammar
