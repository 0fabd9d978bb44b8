// One rule's expression to a deterministic automaton.
#include "grammar/automaton_build.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "grammar/char_dfa.h"

namespace deepinfer::grammar {
namespace {

struct NfaState {
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> tokens;
  std::vector<uint32_t> eps;
};

// Repetitions of narrow things are written out up to this many states; others become counted rules.
constexpr int64_t kWriteOut = 160;
// Regular rules up to this size are written into their callers, if the grammar asks for it.
constexpr int64_t kInlineSize = 600;

class Builder {
 public:
  Builder(const Grammar& grammar, Budget* budget)
      : grammar_(grammar), budget_(*budget), rules_(grammar.rules) {}

  Result<std::vector<BuiltRule>> run() {
    DI_TRY(check_rules());
    find_nullable();
    if (grammar_.inline_regular) find_inlinable();
    std::vector<BuiltRule> out;
    // Building a rule may append auxiliary rules.
    for (size_t i = 0; i < rules_.size() && budget_.alive(); ++i) {
      out.push_back(build(static_cast<RuleId>(i)));
      // Rules of a schema are named by their places in it.
      if (!budget_.status().ok() && rules_[i].name.starts_with('#')) budget_.locate(rules_[i].name);
    }
    if (!budget_.status().ok()) return budget_.status();
    return out;
  }

 private:
  Status check_rules() const {
    for (const Rule& r : rules_) {
      bool body = r.kind == Rule::Kind::kBody || r.kind == Rule::Kind::kCounted;
      if (body && r.body == nullptr) return error(Code::kInvalidArgument, "rule '{}' is not defined", r.name);
    }
    return {};
  }

  bool nullable(const ExprPtr& e) const {
    switch (e->kind) {
      case Expr::Kind::kEmpty:
        return true;
      case Expr::Kind::kSeq:
        return std::all_of(e->kids.begin(), e->kids.end(), [&](const ExprPtr& k) { return nullable(k); });
      case Expr::Kind::kAlt:
        return std::any_of(e->kids.begin(), e->kids.end(), [&](const ExprPtr& k) { return nullable(k); });
      case Expr::Kind::kRepeat:
        return e->min == 0 || nullable(e->kids[0]);
      case Expr::Kind::kRule:
        return e->rule < nullable_.size() && nullable_[e->rule];
      case Expr::Kind::kDfa:
        return !e->dfa->states.empty() && e->dfa->states[0].accept;
      default:
        return false;
    }
  }
  bool nullable(const Rule& r) const {
    switch (r.kind) {
      case Rule::Kind::kBody:
        return nullable(r.body);
      case Rule::Kind::kCounted:
        return r.min == 0;
      case Rule::Kind::kLoop: {
        if (r.loop.min == 0 && r.loop.need == 0) return true;
        return false;  // elements are never empty: those who build loops see to it
      }
      case Rule::Kind::kMembers:
        return r.members.min == 0 && std::none_of(r.members.properties.begin(), r.members.properties.end(),
                                                  [](const auto& p) { return p.required; });
    }
    return false;
  }
  void find_nullable() {
    nullable_.assign(rules_.size(), false);
    std::vector<std::vector<RuleId>> callers(rules_.size());
    for (RuleId r = 0; r < rules_.size(); ++r) {
      if (rules_[r].body != nullptr) collect_calls(rules_[r].body, r, &callers);
    }
    std::vector<RuleId> todo;
    for (RuleId r = 0; r < rules_.size(); ++r) todo.push_back(r);
    for (size_t i = 0; i < todo.size() && budget_.alive(); ++i) {
      RuleId r = todo[i];
      if (nullable_[r] || !nullable(rules_[r])) continue;
      nullable_[r] = true;
      todo.insert(todo.end(), callers[r].begin(), callers[r].end());
    }
  }
  void collect_calls(const ExprPtr& e, RuleId caller, std::vector<std::vector<RuleId>>* callers) const {
    if (e->kind == Expr::Kind::kRule && e->rule < callers->size()) (*callers)[e->rule].push_back(caller);
    for (const ExprPtr& k : e->kids) collect_calls(k, caller, callers);
  }

  // Size of an expression with inlinable rules written in, or -1 if it cannot be: recursive or too large.
  int64_t inline_size(const ExprPtr& e) {
    switch (e->kind) {
      case Expr::Kind::kBytes:
        return static_cast<int64_t>(e->bytes.size());
      case Expr::Kind::kClass:
        return 4;
      case Expr::Kind::kDfa:
        return static_cast<int64_t>(e->dfa->states.size()) * 4;
      case Expr::Kind::kToken:
        return 1;
      case Expr::Kind::kRule:
        return inline_size(e->rule);
      default:
        break;
    }
    int64_t n = 1;
    for (const ExprPtr& k : e->kids) {
      int64_t one = inline_size(k);
      if (one < 0) return -1;
      n += one;
      if (n > kInlineSize) return -1;
    }
    if (e->kind == Expr::Kind::kRepeat) {
      int64_t times = e->max == kUnbounded ? e->min + 1 : e->max;
      if (times > 8) return -1;
      n *= times;
    }
    return n > kInlineSize ? -1 : n;
  }
  int64_t inline_size(RuleId r) {
    if (r >= inline_size_.size() || rules_[r].kind != Rule::Kind::kBody) return -1;
    if (inline_size_[r] != kUnknown) return inline_size_[r];
    inline_size_[r] = -1;  // while it is being measured: recursion
    int64_t n = inline_depth_ > 200 ? -1 : (++inline_depth_, inline_size(rules_[r].body));
    if (inline_depth_ > 0) --inline_depth_;
    return inline_size_[r] = n;
  }
  void find_inlinable() {
    inline_size_.assign(rules_.size(), kUnknown);
    for (RuleId r = 0; r < rules_.size(); ++r) inline_size(r);
  }

  uint32_t fresh() {
    nfa_.emplace_back();
    budget_.spend_states(1);
    return static_cast<uint32_t>(nfa_.size() - 1);
  }
  void add_paths(const std::vector<BytePath>& paths, uint32_t from, uint32_t to) {
    std::map<std::string, uint32_t> shared;  // what follows -> state in front of it
    for (const BytePath& p : paths) {
      uint32_t next = to;
      std::string rest;
      for (size_t i = p.size(); i-- > 1;) {
        rest += static_cast<char>(p[i].lo);
        rest += static_cast<char>(p[i].hi);
        auto it = shared.find(rest);
        if (it == shared.end()) {
          uint32_t s = fresh();
          nfa_[s].bytes.push_back({p[i].lo, p[i].hi, next});
          it = shared.emplace(rest, s).first;
        }
        next = it->second;
      }
      nfa_[from].bytes.push_back({p[0].lo, p[0].hi, next});
    }
  }
  static std::vector<BytePath> paths(const CharSet& set, Spelling spelling) {
    return spelling == Spelling::kJson ? json_paths(set) : utf8_paths(set);
  }

  uint32_t add(const ExprPtr& e, uint32_t from) {
    if (!budget_.alive()) return from;
    switch (e->kind) {
      case Expr::Kind::kEmpty:
        return from;
      case Expr::Kind::kBytes:
        for (char ch : e->bytes) {
          uint32_t to = fresh();
          auto b = static_cast<uint8_t>(ch);
          nfa_[from].bytes.push_back({b, b, to});
          from = to;
        }
        return from;
      case Expr::Kind::kClass: {
        uint32_t to = fresh();
        add_paths(paths(e->set, e->spelling), from, to);
        return to;
      }
      case Expr::Kind::kSeq:
        for (const ExprPtr& k : e->kids) from = add(k, from);
        return from;
      case Expr::Kind::kAlt: {
        uint32_t end = fresh();
        for (const ExprPtr& k : e->kids) {
          uint32_t begin = fresh();
          nfa_[from].eps.push_back(begin);
          uint32_t last = add(k, begin);
          nfa_[last].eps.push_back(end);
        }
        return end;
      }
      case Expr::Kind::kRepeat:
        return add_repeat(e, from);
      case Expr::Kind::kRule:
        if (!inline_size_.empty() && e->rule < inline_size_.size() && inline_size_[e->rule] >= 0)
          return add(ExprPtr(rules_[e->rule].body), from);  // a copy: rules_ may grow meanwhile
        return add_call(e->rule, from);
      case Expr::Kind::kToken: {
        uint32_t to = fresh();
        nfa_[from].tokens.push_back({e->token, to});
        return to;
      }
      case Expr::Kind::kDfa:
        return add_dfa(*e->dfa, e->spelling, from);
      case Expr::Kind::kNever:
      case Expr::Kind::kAnchorStart:
      case Expr::Kind::kAnchorEnd:
        return fresh();
    }
    return from;
  }
  uint32_t add_call(RuleId rule, uint32_t from) {
    uint32_t to = fresh();
    nfa_[from].calls.push_back({rule, to});
    return to;
  }

  static bool narrow(const ExprPtr& e) {
    if (e->kind != Expr::Kind::kClass) return e->kind == Expr::Kind::kBytes;
    uint32_t n = 0;
    for (CharSet::Range r : e->set.ranges()) n += r.hi - r.lo + 1;
    return n <= 16 && e->set.ranges().back().hi < 0x80;
  }
  int64_t rough_size(const ExprPtr& e) const {
    int64_t n = e->kind == Expr::Kind::kBytes   ? static_cast<int64_t>(e->bytes.size())
                : e->kind == Expr::Kind::kClass ? 2
                : e->kind == Expr::Kind::kDfa   ? static_cast<int64_t>(e->dfa->states.size()) * 3
                                                : 1;
    for (const ExprPtr& k : e->kids) n += rough_size(k);
    if (e->kind == Expr::Kind::kRepeat) n *= std::min<int64_t>(8, e->max == kUnbounded ? e->min + 1 : e->max);
    return n;
  }
  static bool regular(const ExprPtr& e) {
    if (e->kind == Expr::Kind::kRule || e->kind == Expr::Kind::kToken) return false;
    return std::all_of(e->kids.begin(), e->kids.end(), regular);
  }

  uint32_t add_repeat(const ExprPtr& e, uint32_t from) {
    const ExprPtr& kid = e->kids[0];
    int64_t times = e->max == kUnbounded ? int64_t{e->min} + 1 : e->max;
    int64_t limit = narrow(kid) ? kWriteOut : times <= 4 ? kWriteOut : 0;
    bool star = e->max == kUnbounded && e->min <= 1;
    bool optional = e->max == 1;
    if (!star && !optional && rough_size(kid) * times > limit) return add_counted(e, from);
    for (uint32_t i = 0; i < e->min && budget_.alive(); ++i) from = add(kid, from);
    if (e->max == kUnbounded) {
      uint32_t head = fresh();
      nfa_[from].eps.push_back(head);
      uint32_t last = add(kid, head);
      nfa_[last].eps.push_back(head);
      return head;
    }
    uint32_t end = fresh();
    for (uint32_t i = e->min; i < e->max && budget_.alive(); ++i) {
      nfa_[from].eps.push_back(end);
      uint32_t begin = fresh();
      nfa_[from].eps.push_back(begin);
      from = add(kid, begin);
    }
    nfa_[from].eps.push_back(end);
    return end;
  }

  // A rule that counts, instead of copies: by number if no element begins another, else as a loop of calls.
  uint32_t add_counted(ExprPtr e, uint32_t from) {  // by value: rules_ grows here
    const ExprPtr& kid = e->kids[0];
    bool empty_kid = nullable(kid);
    Rule rule;
    rule.name = "repeat";
    if (kid->kind == Expr::Kind::kClass ||
        (!empty_kid && regular(kid) && rough_size(kid) <= 64 && prefix_code(kid))) {
      rule.kind = Rule::Kind::kCounted;
      rule.body = kid;
      rule.min = e->min;
      rule.max = e->max;
    } else {
      RuleId element = static_cast<RuleId>(rules_.size());
      Rule body;
      body.name = "element";
      body.body = kid;
      add_rule(std::move(body), empty_kid);
      rule.kind = Rule::Kind::kLoop;
      rule.loop.positions = {{{element, false}}};
      rule.loop.min = empty_kid ? 0 : e->min;
      rule.loop.max = e->max;
    }
    bool empty = rule.kind == Rule::Kind::kCounted ? rule.min == 0 : rule.loop.min == 0;
    auto id = static_cast<RuleId>(rules_.size());
    add_rule(std::move(rule), empty);
    return add_call(id, from);
  }
  void add_rule(Rule rule, bool is_nullable) {
    rules_.push_back(std::move(rule));
    nullable_.push_back(is_nullable);
    if (!inline_size_.empty()) inline_size_.push_back(-1);
    budget_.spend_states(1);
  }
  bool prefix_code(const ExprPtr& e) {
    std::vector<NfaState> saved;
    saved.swap(nfa_);
    uint32_t start = fresh(), end = add(e, start);
    std::vector<BuiltState> dfa = subsets(start, end, nullptr);
    saved.swap(nfa_);
    if (dfa.size() > 64) return false;
    return std::none_of(dfa.begin(), dfa.end(),
                        [](const BuiltState& s) { return s.accept && !s.bytes.empty(); });
  }

  uint32_t add_dfa(const CharDfa& dfa, Spelling spelling, uint32_t from) {
    auto base = static_cast<uint32_t>(nfa_.size());
    if (!budget_.spend_states(static_cast<int64_t>(dfa.states.size()))) return from;
    nfa_.resize(base + dfa.states.size());
    uint32_t end = fresh();
    for (uint32_t s = 0; s < dfa.states.size() && budget_.alive(); ++s) {
      std::map<uint32_t, std::vector<CharSet::Range>> by_target;
      for (const CharDfa::Edge& edge : dfa.states[s].edges) by_target[edge.to].push_back({edge.lo, edge.hi});
      for (auto& [to, ranges] : by_target)
        add_paths(paths(CharSet::of_ranges(std::move(ranges)), spelling), base + s, base + to);
      if (dfa.states[s].accept) nfa_[base + s].eps.push_back(end);
    }
    if (!dfa.states.empty()) nfa_[from].eps.push_back(base);
    return end;
  }

  void close(std::vector<uint32_t>* set) {
    if (seen_.size() < nfa_.size()) seen_.resize(nfa_.size(), 0);
    ++epoch_;
    std::vector<uint32_t> todo;
    for (uint32_t s : *set) {
      if (seen_[s] != epoch_) seen_[s] = epoch_, todo.push_back(s);
    }
    set->clear();
    while (!todo.empty()) {
      uint32_t s = todo.back();
      todo.pop_back();
      set->push_back(s);
      auto visit = [&](uint32_t t) {
        if (seen_[t] != epoch_) seen_[t] = epoch_, todo.push_back(t);
      };
      for (uint32_t t : nfa_[s].eps) visit(t);
      for (const CallEdge& c : nfa_[s].calls) {
        if (nullable_[c.rule]) visit(c.to);
      }
    }
    std::sort(set->begin(), set->end());
  }

  // States of a set that decide anything: those with edges, and the end.
  std::vector<uint32_t> essence(const std::vector<uint32_t>& set, uint32_t end) const {
    std::vector<uint32_t> out;
    for (uint32_t s : set) {
      const NfaState& n = nfa_[s];
      if (s == end || !n.bytes.empty() || !n.calls.empty() || !n.tokens.empty()) out.push_back(s);
    }
    return out;
  }

  // `rule`: this rule's own id, so that direct left recursion A -> A x | y becomes y x*.
  std::vector<BuiltState> subsets(uint32_t start, uint32_t end, const RuleId* rule) {
    struct Hash {
      size_t operator()(const std::vector<uint32_t>& v) const {
        uint64_t h = v.size();
        for (uint32_t x : v) h = (h ^ x) * 0x9E3779B97F4A7C15ull, h ^= h >> 31;
        return static_cast<size_t>(h);
      }
    };
    std::vector<uint32_t> first = {start};
    close(&first);
    if (rule != nullptr) first = without_left_recursion(first, end, *rule);
    std::vector<BuiltState> out(1);
    std::vector<std::vector<uint32_t>> sets = {essence(first, end)};
    std::unordered_map<std::vector<uint32_t>, uint32_t, Hash> ids;
    auto id_of = [&](std::vector<uint32_t> set) {
      close(&set);
      set = essence(set, end);
      auto [it, is_new] = ids.emplace(set, static_cast<uint32_t>(sets.size()));
      if (is_new) {
        budget_.spend_bytes(static_cast<int64_t>(set.size() * 8 + 64));
        sets.push_back(std::move(set));
        out.emplace_back();
      }
      return it->second;
    };
    for (size_t i = 0; i < sets.size(); ++i) {
      if (!budget_.spend_states(1)) return out;
      std::vector<uint32_t> set = sets[i];
      BuiltState state;
      state.accept = i > 0 && std::binary_search(set.begin(), set.end(), end);
      byte_edges(set, &state, id_of);
      std::map<RuleId, std::vector<uint32_t>> calls;
      std::map<int32_t, std::vector<uint32_t>> tokens;
      for (uint32_t s : set) {
        for (const CallEdge& c : nfa_[s].calls) calls[c.rule].push_back(c.to);
        for (const TokenEdge& t : nfa_[s].tokens) tokens[t.token].push_back(t.to);
      }
      for (auto& [r, targets] : calls) state.calls.push_back({r, id_of(std::move(targets))});
      for (auto& [t, targets] : tokens) state.tokens.push_back({t, id_of(std::move(targets))});
      out[i] = std::move(state);
    }
    return out;
  }

  static bool same(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

  template <typename F>
  void byte_edges(const std::vector<uint32_t>& set, BuiltState* state, F& id_of) {
    edges_.clear();
    for (uint32_t s : set) edges_.insert(edges_.end(), nfa_[s].bytes.begin(), nfa_[s].bytes.end());
    bool cut[257] = {};
    for (const ByteEdge& e : edges_) cut[e.lo] = cut[e.hi + 1] = true;
    std::vector<uint32_t> targets, last_targets;
    uint32_t last_id = 0;
    for (int b = 0; b < 256;) {
      int next = b + 1;
      while (next < 256 && !cut[next]) ++next;
      targets.clear();
      for (const ByteEdge& e : edges_) {
        if (e.lo <= b && b <= e.hi) targets.push_back(e.to);
      }
      if (!targets.empty()) {
        std::sort(targets.begin(), targets.end());
        targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
        if (!same(targets, last_targets)) last_targets = targets, last_id = id_of(targets);
        auto lo = static_cast<uint8_t>(b), hi = static_cast<uint8_t>(next - 1);
        if (!state->bytes.empty() && state->bytes.back().to == last_id && state->bytes.back().hi + 1 == lo) {
          state->bytes.back().hi = hi;
        } else {
          state->bytes.push_back({lo, hi, last_id});
        }
      }
      b = next;
    }
  }

  std::vector<uint32_t> without_left_recursion(const std::vector<uint32_t>& first, uint32_t end,
                                               RuleId rule) {
    std::vector<uint32_t> after;
    for (uint32_t s : first) {
      for (const CallEdge& c : nfa_[s].calls) {
        if (c.rule == rule) after.push_back(c.to);
      }
    }
    if (after.empty()) return first;
    uint32_t start = fresh();
    bool empty = false;
    for (uint32_t s : first) {
      NfaState copy = nfa_[s];
      empty = empty || s == end;
      NfaState& n = nfa_[start];
      n.bytes.insert(n.bytes.end(), copy.bytes.begin(), copy.bytes.end());
      n.tokens.insert(n.tokens.end(), copy.tokens.begin(), copy.tokens.end());
      for (const CallEdge& c : copy.calls) {
        if (c.rule != rule) n.calls.push_back(c);
      }
    }
    for (uint32_t t : after) nfa_[end].eps.push_back(t);
    std::vector<uint32_t> out = {start};
    if (empty) out.push_back(end);
    close(&out);
    return out;
  }

  // Merges states with equal edges, a few rounds: exact at any time, and enough for tails of characters.
  static void merge_equal(std::vector<BuiltState>* states) {
    struct Hash {
      size_t operator()(const BuiltState* s) const {
        uint64_t h = s->accept ? 7 : 3;
        auto mix = [&h](uint64_t v) { h = (h ^ v) * 0x9E3779B97F4A7C15ull, h ^= h >> 29; };
        for (const ByteEdge& e : s->bytes) mix(uint64_t{e.lo} << 40 | uint64_t{e.hi} << 32 | e.to);
        for (const CallEdge& e : s->calls) mix(uint64_t{e.rule} << 32 | e.to);
        for (const TokenEdge& e : s->tokens) mix(uint64_t(static_cast<uint32_t>(e.token)) << 32 | e.to);
        return static_cast<size_t>(h);
      }
    };
    struct Equal {
      bool operator()(const BuiltState* a, const BuiltState* b) const { return *a == *b; }
    };
    for (int round = 0; round < 6; ++round) {
      std::unordered_map<const BuiltState*, uint32_t, Hash, Equal> ids;
      std::vector<uint32_t> name(states->size());
      std::vector<size_t> kept = {0};  // the start stays alone: nothing may lead back to it
      for (size_t s = 1; s < states->size(); ++s) {
        auto [it, fresh] = ids.emplace(&(*states)[s], static_cast<uint32_t>(kept.size()));
        if (fresh) kept.push_back(s);
        name[s] = it->second;
      }
      if (kept.size() == states->size()) return;
      std::vector<BuiltState> out(kept.size());
      for (size_t i = 0; i < kept.size(); ++i) out[i] = std::move((*states)[kept[i]]);
      for (BuiltState& s : out) {
        for (CallEdge& e : s.calls) e.to = name[e.to];
        for (TokenEdge& e : s.tokens) e.to = name[e.to];
        std::vector<ByteEdge> joined;
        for (ByteEdge e : s.bytes) {
          e.to = name[e.to];
          if (!joined.empty() && joined.back().to == e.to && joined.back().hi + 1 == e.lo) {
            joined.back().hi = e.hi;
          } else {
            joined.push_back(e);
          }
        }
        s.bytes = std::move(joined);
      }
      *states = std::move(out);
    }
  }

  BuiltRule build(RuleId id) {
    Rule rule = rules_[id];  // a copy: rules_ may grow
    BuiltRule out;
    out.name = rule.name;
    out.kind = rule.kind;
    out.nullable = nullable_[id];
    out.min = rule.min;
    out.max = rule.max;
    out.loop = std::move(rule.loop);
    out.members = std::move(rule.members);
    if (rule.kind == Rule::Kind::kLoop || rule.kind == Rule::Kind::kMembers) return out;
    nfa_.clear();
    seen_.clear();
    epoch_ = 0;
    uint32_t start = fresh(), end = add(rule.body, start);
    out.states = subsets(start, end, rule.kind == Rule::Kind::kBody ? &id : nullptr);
    if (rule.kind == Rule::Kind::kCounted) {
      // The end of an element is the head again: state 0.
      for (BuiltState& s : out.states) {
        for (ByteEdge& e : s.bytes) {
          if (!out.states[e.to].accept) continue;
          DI_CHECK(out.states[e.to].bytes.empty(), "a counted element must be a prefix code");
          e.to = 0;
        }
      }
      for (BuiltState& s : out.states) s.accept = false;
      if (!out.states[0].bytes.empty()) out.states[0].accept = true;  // the head; the count decides
    }
    merge_equal(&out.states);
    return out;
  }

  static constexpr int64_t kUnknown = -2;
  const Grammar& grammar_;
  Budget& budget_;
  std::vector<Rule> rules_;
  std::vector<bool> nullable_;
  std::vector<int64_t> inline_size_;
  int inline_depth_ = 0;
  std::vector<NfaState> nfa_;
  std::vector<ByteEdge> edges_;
  std::vector<uint32_t> seen_;
  uint32_t epoch_ = 0;
};

}  // namespace

Result<std::vector<BuiltRule>> build_rules(const Grammar& grammar, Budget* budget) {
  return Builder(grammar, budget).run();
}

}  // namespace deepinfer::grammar
