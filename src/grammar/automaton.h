// A grammar as tables: per rule a deterministic automaton over bytes, calls of other rules and control
// tokens, or a counting rule. Everything that leads nowhere is gone, no rule is left-recursive, and no rule
// accepts the empty word (callers skip it instead), so a walk over these tables can neither get stuck nor
// loop without reading. Built once per grammar. Source: recursive transition networks with counted loops;
// structured output specification 12.2. Threads: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

struct ByteEdge {
  uint8_t lo = 0, hi = 0;
  uint32_t to = 0;
  bool operator==(const ByteEdge&) const = default;
};
struct CallEdge {
  RuleId rule = 0;
  uint32_t to = 0;
  bool operator==(const CallEdge&) const = default;
};
struct TokenEdge {
  int32_t token = 0;
  uint32_t to = 0;
  bool operator==(const TokenEdge&) const = default;
};

struct Automaton {
  // A counting rule of kind kLoop or kMembers has one state without edges; its position is the item's data.
  struct State {
    uint32_t rule = 0;
    bool accept = false;
    uint32_t bytes_at = 0, bytes_n = 0, calls_at = 0, calls_n = 0, tokens_at = 0, tokens_n = 0;
  };
  struct RuleInfo {
    Rule::Kind kind = Rule::Kind::kBody;
    uint32_t start = 0;                  // state
    uint32_t rank = 0;                   // a rule that may begin with another has the smaller rank
    bool nullable = false;               // the source rule accepts the empty word
    bool productive = false;             // it accepts some other word
    uint32_t min = 0, max = kUnbounded;  // kCounted
    LoopRule loop;
    MembersRule members;
  };
  std::vector<State> states;
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> tokens;
  std::vector<RuleInfo> rules;
  RuleId root = 0;

  std::span<const ByteEdge> bytes_of(uint32_t s) const {
    return {bytes.data() + states[s].bytes_at, states[s].bytes_n};
  }
  std::span<const CallEdge> calls_of(uint32_t s) const {
    return {calls.data() + states[s].calls_at, states[s].calls_n};
  }
  std::span<const TokenEdge> tokens_of(uint32_t s) const {
    return {tokens.data() + states[s].tokens_at, states[s].tokens_n};
  }
  size_t memory_bytes() const;
};

// kInvalidArgument: left recursion through other rules, or a grammar that matches nothing at all.
Result<Automaton> build_automaton(const Grammar& grammar, Budget* budget);

// Where a counting rule can go from `data`: calls edge(rule, data') for each; `accept` if it may end there.
// kLoop: data = elements | marked << 32. kMembers in order: next property | members << 32; in any order: the
// set of properties seen | members << 40.
template <typename F>
bool expand_loop(const LoopRule& loop, uint64_t data, F&& edge) {
  auto count = static_cast<uint32_t>(data), marked = static_cast<uint32_t>(data >> 32);
  if (count < loop.max && !loop.positions.empty()) {
    // Counts beyond what matters are one state, so that long arrays do not make new states for ever.
    uint64_t cap =
        loop.max != kUnbounded ? loop.max : std::max<uint64_t>(loop.min, loop.positions.size() - 1);
    uint64_t next = std::min<uint64_t>(uint64_t{count} + 1, cap);
    if (loop.max == kUnbounded && cap == 0) next = 1;
    for (const LoopRule::Edge& e : loop.positions[std::min<size_t>(count, loop.positions.size() - 1)]) {
      uint64_t m = std::min<uint64_t>(uint64_t{marked} + (e.bump ? 1 : 0), loop.need);
      if (loop.max != kUnbounded && loop.need - m > loop.max - next) continue;  // no room left for the rest
      edge(e.rule, next | m << 32);
    }
  }
  return count >= loop.min && marked >= loop.need;
}

template <typename F>
bool expand_members(const MembersRule& m, uint64_t data, F&& edge) {
  size_t n = m.properties.size();
  int shift = m.any_order ? 40 : 32;
  uint64_t low = data & ((1ull << shift) - 1), count = data >> shift;
  uint64_t cap = m.max != kUnbounded ? m.max : std::max<uint64_t>(m.min, 1);
  uint64_t next_count = std::min<uint64_t>(count + 1, cap) << shift;
  uint64_t required_left = 0, left = 0;
  auto pending = [&](size_t i) { return m.any_order ? (low >> i & 1) == 0 : i >= low; };
  for (size_t i = 0; i < n; ++i) {
    if (!pending(i)) continue;
    ++left;
    if (m.properties[i].required) ++required_left;
  }
  bool room = m.max == kUnbounded || count < m.max;
  if (room) {
    for (size_t i = m.any_order ? 0 : low; i < n; ++i) {
      if (!pending(i)) continue;
      const MembersRule::Property& p = m.properties[i];
      uint64_t after = required_left - (p.required ? 1 : 0);
      // Members skipped here are lost in order: enough must remain for the least number.
      uint64_t remain = m.any_order ? left - 1 : n - i - 1;
      bool fits = m.max == kUnbounded || count + 1 + after <= m.max;
      bool enough = !m.others.empty() || count + 1 + remain >= m.min;
      if (fits && enough)
        edge(count == 0 ? p.first : p.next, (m.any_order ? low | 1ull << i : i + 1) | next_count);
      if (!m.any_order && p.required) break;
    }
    bool may_add =
        m.any_order ? (m.max == kUnbounded || count + 1 + required_left <= m.max) : required_left == 0;
    if (may_add) {
      uint64_t position = m.any_order ? low : n;
      for (const auto& [first, next] : m.others) edge(count == 0 ? first : next, position | next_count);
    }
  }
  return required_left == 0 && count >= m.min;
}

}  // namespace deepinfer::grammar
