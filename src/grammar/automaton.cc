// Expressions to tables: Thompson's construction, subsets, merging of equal states, then pruning over all
// rules.
#include "grammar/automaton.h"

#include <algorithm>
#include <unordered_map>

#include "grammar/automaton_build.h"

namespace deepinfer::grammar {

size_t Automaton::memory_bytes() const {
  size_t n = states.size() * sizeof(State) + bytes.size() * sizeof(ByteEdge) +
             calls.size() * sizeof(CallEdge) + tokens.size() * sizeof(TokenEdge) +
             rules.size() * sizeof(RuleInfo);
  for (const RuleInfo& r : rules) {
    n += r.members.properties.size() * sizeof(MembersRule::Property);
    for (const auto& p : r.loop.positions) n += p.size() * sizeof(LoopRule::Edge) + sizeof(p);
  }
  return n;
}

namespace {

// Which rules accept some word besides the empty one, and which states can reach the end of their rule.
class Pruner {
 public:
  Pruner(std::vector<BuiltRule>* rules, Budget* budget) : rules_(*rules), budget_(*budget) {}

  void run() {
    size_t n = rules_.size();
    callers_.resize(n);
    for (RuleId r = 0; r < n; ++r)
      for_calls(rules_[r], [&](RuleId callee) { callers_[callee].push_back(r); });
    std::vector<RuleId> todo;
    for (RuleId r = 0; r < n; ++r) todo.push_back(static_cast<RuleId>(n - 1 - r));
    for (size_t i = 0; i < todo.size() && budget_.alive(); ++i) {
      RuleId r = todo[i];
      if (rules_[r].productive || !productive(rules_[r])) continue;
      rules_[r].productive = true;
      todo.insert(todo.end(), callers_[r].begin(), callers_[r].end());
    }
    for (BuiltRule& r : rules_) prune(&r);
  }

 private:
  template <typename F>
  static void for_calls(const BuiltRule& r, F f) {
    for (const BuiltState& s : r.states) {
      for (const CallEdge& c : s.calls) f(c.rule);
    }
    for (const auto& p : r.loop.positions) {
      for (const LoopRule::Edge& e : p) f(e.rule);
    }
    for (const auto& p : r.members.properties) f(p.first), f(p.next);
    for (const auto& o : r.members.others) f(o.first), f(o.second);
  }

  std::vector<bool> live_states(const BuiltRule& r) const {
    size_t n = r.states.size();
    std::vector<std::vector<uint32_t>> back(n);
    std::vector<uint32_t> todo;
    std::vector<bool> live(n, false);
    for (uint32_t s = 0; s < n; ++s) {
      for (const ByteEdge& e : r.states[s].bytes) back[e.to].push_back(s);
      for (const TokenEdge& e : r.states[s].tokens) back[e.to].push_back(s);
      for (const CallEdge& e : r.states[s].calls) {
        if (rules_[e.rule].productive) back[e.to].push_back(s);
      }
      if (r.states[s].accept) live[s] = true, todo.push_back(s);
    }
    while (!todo.empty()) {
      uint32_t s = todo.back();
      todo.pop_back();
      for (uint32_t t : back[s]) {
        if (!live[t]) live[t] = true, todo.push_back(t);
      }
    }
    return live;
  }

  // The positions at which the loop can still have an element, with or without a mark.
  static constexpr uint64_t kPlenty = 1ull << 40;
  LoopRule pruned_loop(const LoopRule& in) const {
    LoopRule out = in;
    for (size_t i = 0; i < out.positions.size(); ++i) {
      std::erase_if(out.positions[i], [&](const LoopRule::Edge& e) { return !rules_[e.rule].productive; });
      if (out.positions[i].empty()) {  // nothing can stand here: the sequence ends before
        out.max = std::min<uint32_t>(out.max, static_cast<uint32_t>(i));
        out.positions.resize(i + 1);
        break;
      }
    }
    return out;
  }
  static bool possible(const LoopRule& loop) {
    if (loop.min > loop.max || loop.max == 0 || loop.need > loop.max) return false;
    uint64_t marks = 0;
    for (size_t i = 0; i < loop.positions.size() && i < loop.max; ++i) {
      bool bump = false;
      for (const LoopRule::Edge& e : loop.positions[i]) bump = bump || e.bump;
      if (!bump) continue;
      bool last = i + 1 == loop.positions.size();
      marks += !last ? 1 : loop.max == kUnbounded ? kPlenty : loop.max - i;
    }
    return marks >= loop.need;
  }
  bool members_possible(const MembersRule& m) const {
    uint64_t required = 0, available = 0, others = 0;
    for (const auto& p : m.properties) {
      bool ok = rules_[p.first].productive && rules_[p.next].productive;
      if (!ok && p.required) return false;
      if (p.required) ++required;
      if (ok) ++available;
    }
    for (const auto& o : m.others) others += rules_[o.first].productive ? 1 : 0;
    if (required > m.max || m.max == 0) return false;
    return (available > 0 || others > 0) && (others > 0 || available >= m.min);
  }

  bool productive(const BuiltRule& r) const {
    if (r.kind == Rule::Kind::kLoop) return possible(pruned_loop(r.loop));
    if (r.kind == Rule::Kind::kMembers) return members_possible(r.members);
    if (r.kind == Rule::Kind::kCounted) {  // the head accepts, but some element must lead back to it
      if (r.max == 0 || r.min > r.max) return false;
      return std::any_of(r.states.begin(), r.states.end(), [](const BuiltState& s) {
        return std::any_of(s.bytes.begin(), s.bytes.end(), [](const ByteEdge& e) { return e.to == 0; });
      });
    }
    return !r.states.empty() && live_states(r)[0];
  }

  void prune(BuiltRule* r) {
    if (!r->productive) {
      r->states.clear();
      return;
    }
    if (r->kind == Rule::Kind::kLoop) {
      r->loop = pruned_loop(r->loop);
      if (r->loop.max != kUnbounded && r->loop.positions.size() > r->loop.max)
        r->loop.positions.resize(r->loop.max);
      return;
    }
    if (r->kind == Rule::Kind::kMembers) {
      MembersRule& m = r->members;
      std::erase_if(m.properties, [&](const auto& p) { return !rules_[p.first].productive; });
      std::erase_if(m.others, [&](const auto& o) { return !rules_[o.first].productive; });
      return;
    }
    std::vector<bool> live = live_states(*r);
    std::vector<uint32_t> renamed(live.size(), 0);
    uint32_t count = 0;
    for (size_t s = 0; s < live.size(); ++s) {
      if (live[s]) renamed[s] = count++;
    }
    std::vector<BuiltState> kept(count);
    for (size_t s = 0; s < live.size(); ++s) {
      if (!live[s]) continue;
      BuiltState& k = kept[renamed[s]];
      k.accept = r->states[s].accept;
      for (ByteEdge e : r->states[s].bytes) {
        if (live[e.to]) e.to = renamed[e.to], k.bytes.push_back(e);
      }
      for (TokenEdge e : r->states[s].tokens) {
        if (live[e.to]) e.to = renamed[e.to], k.tokens.push_back(e);
      }
      for (CallEdge e : r->states[s].calls) {
        if (live[e.to] && rules_[e.rule].productive) e.to = renamed[e.to], k.calls.push_back(e);
      }
    }
    r->states = std::move(kept);
  }

  std::vector<BuiltRule>& rules_;
  Budget& budget_;
  std::vector<std::vector<RuleId>> callers_;
};

// Depth-first order over "may begin with": the rank of a rule is smaller than that of what it begins with.
class Ranker {
 public:
  explicit Ranker(const std::vector<BuiltRule>& rules)
      : rules_(rules), mark_(rules.size(), 0), rank_(rules.size(), 0) {}

  Status run() {
    uint32_t next = static_cast<uint32_t>(rules_.size());
    for (RuleId r = 0; r < rules_.size(); ++r) DI_TRY(visit(r, &next));
    return {};
  }
  const std::vector<uint32_t>& ranks() const { return rank_; }

 private:
  std::vector<RuleId> begins_with(RuleId id) const {
    const BuiltRule& r = rules_[id];
    std::vector<RuleId> out;
    if (!r.productive) return out;
    if (r.kind == Rule::Kind::kLoop) {
      expand_loop(r.loop, 0, [&](RuleId c, uint64_t) { out.push_back(c); });
    } else if (r.kind == Rule::Kind::kMembers) {
      expand_members(r.members, 0, [&](RuleId c, uint64_t) { out.push_back(c); });
    } else {
      for (const CallEdge& c : r.states[0].calls) out.push_back(c.rule);
    }
    return out;
  }

  // Iterative: a hostile grammar may begin with a chain of a hundred thousand rules.
  Status visit(RuleId root, uint32_t* next) {
    if (mark_[root] != 0) return {};
    struct Frame {
      RuleId rule;
      std::vector<RuleId> kids;
      size_t at;
    };
    std::vector<Frame> stack;
    stack.push_back({root, begins_with(root), 0});
    mark_[root] = 1;
    while (!stack.empty()) {
      Frame& f = stack.back();
      if (f.at == f.kids.size()) {
        mark_[f.rule] = 2;
        rank_[f.rule] = --*next;
        stack.pop_back();
        continue;
      }
      RuleId k = f.kids[f.at++];
      if (mark_[k] == 1)
        return error(Code::kInvalidArgument, "left recursion: rule '{}' can begin with itself through '{}'",
                     rules_[k].name, rules_[f.rule].name);
      if (mark_[k] == 0) {
        mark_[k] = 1;
        stack.push_back({k, begins_with(k), 0});
      }
    }
    return {};
  }

  const std::vector<BuiltRule>& rules_;
  std::vector<uint8_t> mark_;
  std::vector<uint32_t> rank_;
};

Automaton flatten(std::vector<BuiltRule>&& rules, const std::vector<uint32_t>& ranks, RuleId root) {
  Automaton a;
  a.root = root;
  std::vector<uint32_t> base(rules.size());
  uint32_t at = 0;
  for (size_t r = 0; r < rules.size(); ++r) {
    base[r] = at;
    bool one = rules[r].kind == Rule::Kind::kLoop || rules[r].kind == Rule::Kind::kMembers;
    at += one ? 1 : static_cast<uint32_t>(rules[r].states.size());
  }
  for (size_t r = 0; r < rules.size(); ++r) {
    BuiltRule& b = rules[r];
    Automaton::RuleInfo info;
    info.kind = b.kind;
    info.start = base[r];
    info.rank = ranks[r];
    info.nullable = b.nullable;
    info.productive = b.productive;
    info.min = b.min;
    info.max = b.max;
    info.loop = std::move(b.loop);
    info.members = std::move(b.members);
    a.rules.push_back(std::move(info));
    if (b.kind == Rule::Kind::kLoop || b.kind == Rule::Kind::kMembers) b.states.assign(1, {});
    for (const BuiltState& s : b.states) {
      Automaton::State out;
      out.rule = static_cast<uint32_t>(r);
      out.accept = s.accept;
      out.bytes_at = static_cast<uint32_t>(a.bytes.size());
      out.bytes_n = static_cast<uint32_t>(s.bytes.size());
      for (ByteEdge e : s.bytes) e.to += base[r], a.bytes.push_back(e);
      out.calls_at = static_cast<uint32_t>(a.calls.size());
      out.calls_n = static_cast<uint32_t>(s.calls.size());
      for (CallEdge e : s.calls) e.to += base[r], a.calls.push_back(e);
      out.tokens_at = static_cast<uint32_t>(a.tokens.size());
      out.tokens_n = static_cast<uint32_t>(s.tokens.size());
      for (TokenEdge e : s.tokens) e.to += base[r], a.tokens.push_back(e);
      a.states.push_back(out);
    }
  }
  return a;
}

}  // namespace

Result<Automaton> build_automaton(const Grammar& grammar, Budget* budget) {
  DI_ASSIGN(std::vector<BuiltRule> rules, build_rules(grammar, budget));
  Pruner(&rules, budget).run();
  if (!budget->status().ok()) return budget->status();
  if (!rules[grammar.root].productive && !rules[grammar.root].nullable)
    return Status(Code::kInvalidArgument, "the grammar matches nothing: no text can satisfy it");
  Ranker ranker(rules);
  DI_TRY(ranker.run());
  return flatten(std::move(rules), ranker.ranks(), grammar.root);
}

}  // namespace deepinfer::grammar
