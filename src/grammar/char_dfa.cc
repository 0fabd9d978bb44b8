// Subset construction, products, trimming and merging of character automata.
#include "grammar/char_dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace deepinfer::grammar {
namespace {

struct Nfa {
  struct State {
    std::vector<CharDfa::Edge> edges;
    std::vector<uint32_t> eps;
  };
  std::vector<State> states;
  Budget* budget;

  uint32_t fresh() {
    states.emplace_back();
    return static_cast<uint32_t>(states.size() - 1);
  }
  // Appends `e` after `from`; the state after it.
  uint32_t add(const ExprPtr& e, uint32_t from) {
    if (!budget->spend_states(1)) return from;
    switch (e->kind) {
      case Expr::Kind::kEmpty:
        return from;
      case Expr::Kind::kNever:
        return fresh();
      case Expr::Kind::kBytes:
        for (uint32_t c : code_points(e->bytes)) {
          uint32_t to = fresh();
          states[from].edges.push_back({c, c, to});
          from = to;
        }
        return from;
      case Expr::Kind::kClass: {
        uint32_t to = fresh();
        for (CharSet::Range r : e->set.ranges()) states[from].edges.push_back({r.lo, r.hi, to});
        return to;
      }
      case Expr::Kind::kSeq:
        for (const ExprPtr& k : e->kids) from = add(k, from);
        return from;
      case Expr::Kind::kAlt: {
        uint32_t end = fresh();
        for (const ExprPtr& k : e->kids) {
          uint32_t begin = fresh();
          states[from].eps.push_back(begin);
          uint32_t last = add(k, begin);
          states[last].eps.push_back(end);
        }
        return end;
      }
      case Expr::Kind::kRepeat:
        return repeat(e, from);
      case Expr::Kind::kDfa:
        return embed(*e->dfa, from);
      default:
        DI_CHECK(false, "not a regular expression over characters");
    }
    return from;
  }
  uint32_t repeat(const ExprPtr& e, uint32_t from) {
    for (uint32_t i = 0; i < e->min && budget->alive(); ++i) from = add(e->kids[0], from);
    if (e->max == kUnbounded) {
      uint32_t head = fresh();
      states[from].eps.push_back(head);
      uint32_t last = add(e->kids[0], head);
      states[last].eps.push_back(head);
      return head;
    }
    uint32_t end = fresh();
    for (uint32_t i = e->min; i < e->max && budget->alive(); ++i) {
      states[from].eps.push_back(end);
      uint32_t begin = fresh();
      states[from].eps.push_back(begin);
      from = add(e->kids[0], begin);
    }
    states[from].eps.push_back(end);
    return end;
  }
  uint32_t embed(const CharDfa& dfa, uint32_t from) {
    auto base = static_cast<uint32_t>(states.size());
    if (!budget->spend_states(static_cast<int64_t>(dfa.states.size()))) return from;
    states.resize(base + dfa.states.size());
    uint32_t end = fresh();
    for (size_t i = 0; i < dfa.states.size(); ++i) {
      State& s = states[base + i];
      for (CharDfa::Edge edge : dfa.states[i].edges) s.edges.push_back({edge.lo, edge.hi, edge.to + base});
      if (dfa.states[i].accept) s.eps.push_back(end);
    }
    if (!dfa.states.empty()) states[from].eps.push_back(base);
    return end;
  }
  void close(std::vector<uint32_t>* set) const {
    std::vector<uint32_t> todo = *set;
    std::sort(set->begin(), set->end());
    set->erase(std::unique(set->begin(), set->end()), set->end());
    std::vector<uint32_t> found = *set;
    while (!todo.empty()) {
      uint32_t s = todo.back();
      todo.pop_back();
      for (uint32_t t : states[s].eps) {
        auto it = std::lower_bound(found.begin(), found.end(), t);
        if (it != found.end() && *it == t) continue;
        found.insert(it, t);
        todo.push_back(t);
      }
    }
    *set = std::move(found);
  }
};

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& v) const {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    for (uint32_t x : v) h = (h ^ x) * 0x100000001B3ull + (h >> 29);
    return static_cast<size_t>(h);
  }
};

// Cuts the ranges of several edge lists into pieces on which every list is constant; calls piece(lo, hi,
// targets).
template <typename F>
void for_pieces(const std::vector<const std::vector<CharDfa::Edge>*>& lists, F piece) {
  std::vector<uint32_t> cuts;
  for (const auto* list : lists) {
    for (const CharDfa::Edge& e : *list) cuts.push_back(e.lo), cuts.push_back(e.hi + 1);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  // Sweep: edges sorted by start, those that are open now.
  std::vector<std::pair<CharDfa::Edge, size_t>> edges;
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const CharDfa::Edge& e : *lists[i]) edges.emplace_back(e, i);
  }
  std::sort(edges.begin(), edges.end(), [](const auto& a, const auto& b) { return a.first.lo < b.first.lo; });
  std::vector<std::pair<CharDfa::Edge, size_t>> open;
  size_t next = 0;
  for (size_t k = 0; k + 1 < cuts.size(); ++k) {
    std::erase_if(open, [&](const auto& e) { return e.first.hi < cuts[k]; });
    while (next < edges.size() && edges[next].first.lo == cuts[k]) open.push_back(edges[next++]);
    if (!open.empty()) piece(cuts[k], cuts[k + 1] - 1, open);
  }
}

void append_edge(std::vector<CharDfa::Edge>* edges, uint32_t lo, uint32_t hi, uint32_t to) {
  if (!edges->empty() && edges->back().to == to && edges->back().hi + 1 == lo) {
    edges->back().hi = hi;
  } else {
    edges->push_back({lo, hi, to});
  }
}

CharDfa trim(const CharDfa& in) {
  size_t n = in.states.size();
  std::vector<std::vector<uint32_t>> back(n);
  std::vector<uint32_t> todo;
  std::vector<bool> live(n, false);
  for (uint32_t s = 0; s < n; ++s) {
    for (const CharDfa::Edge& e : in.states[s].edges) back[e.to].push_back(s);
    if (in.states[s].accept) live[s] = true, todo.push_back(s);
  }
  while (!todo.empty()) {
    uint32_t s = todo.back();
    todo.pop_back();
    for (uint32_t t : back[s]) {
      if (!live[t]) live[t] = true, todo.push_back(t);
    }
  }
  CharDfa out;
  std::vector<uint32_t> renamed(n, 0);
  for (uint32_t s = 0; s < n; ++s) {
    if (s > 0 && !live[s]) continue;
    renamed[s] = static_cast<uint32_t>(out.states.size());
    out.states.push_back({{}, in.states[s].accept});
  }
  for (uint32_t s = 0; s < n; ++s) {
    if (s > 0 && !live[s]) continue;
    for (const CharDfa::Edge& e : in.states[s].edges) {
      if (live[e.to]) append_edge(&out.states[renamed[s]].edges, e.lo, e.hi, renamed[e.to]);
    }
  }
  return out;
}

// Merges equivalent states by refining classes until they are stable.
CharDfa merge(const CharDfa& in, Budget* budget) {
  size_t n = in.states.size();
  std::vector<uint32_t> cls(n);
  for (size_t s = 0; s < n; ++s) cls[s] = in.states[s].accept ? 1 : 0;
  size_t count = 0;
  while (budget->alive()) {
    std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> ids;
    std::vector<uint32_t> next(n);
    std::vector<uint32_t> key;
    for (size_t s = 0; s < n; ++s) {
      key.assign(1, cls[s]);
      uint32_t lo = 0, hi = 0, to = 0;
      bool any = false;
      for (const CharDfa::Edge& e : in.states[s].edges) {
        if (any && cls[e.to] == to && e.lo == hi + 1) {
          hi = e.hi;
          continue;
        }
        if (any) key.insert(key.end(), {lo, hi, to});
        lo = e.lo, hi = e.hi, to = cls[e.to], any = true;
      }
      if (any) key.insert(key.end(), {lo, hi, to});
      next[s] = ids.emplace(key, static_cast<uint32_t>(ids.size())).first->second;
    }
    cls = std::move(next);
    if (ids.size() == count) break;
    count = ids.size();
  }
  if (count == n || !budget->alive()) return in;
  CharDfa out;
  out.states.resize(count);
  // The start's class must be state 0.
  uint32_t zero = cls[0];
  auto name = [zero](uint32_t c) { return c == zero ? 0 : c == 0 ? zero : c; };
  std::vector<bool> done(count, false);
  for (size_t s = 0; s < n; ++s) {
    uint32_t c = name(cls[s]);
    if (done[c]) continue;
    done[c] = true;
    out.states[c].accept = in.states[s].accept;
    for (const CharDfa::Edge& e : in.states[s].edges)
      append_edge(&out.states[c].edges, e.lo, e.hi, name(cls[e.to]));
  }
  return out;
}

enum class Both { kAnd, kOr, kMinus };

CharDfaPtr product(const CharDfaPtr& a, const CharDfaPtr& b, Both how, Budget* budget) {
  constexpr uint32_t kDead = 0xFFFFFFFFu;
  CharDfa out;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  auto id_of = [&](uint32_t x, uint32_t y) {
    auto [it, fresh] = ids.emplace(uint64_t{x} << 32 | y, static_cast<uint32_t>(pairs.size()));
    if (fresh) pairs.emplace_back(x, y), out.states.emplace_back();
    return it->second;
  };
  static const std::vector<CharDfa::Edge> none;
  id_of(a->states.empty() ? kDead : 0, b->states.empty() ? kDead : 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (!budget->spend_states(1)) return dfa_none();
    auto [x, y] = pairs[i];
    bool ax = x != kDead && a->states[x].accept, ay = y != kDead && b->states[y].accept;
    out.states[i].accept = how == Both::kAnd ? ax && ay : how == Both::kOr ? ax || ay : ax && !ay;
    std::vector<CharDfa::Edge> edges;
    for_pieces({x == kDead ? &none : &a->states[x].edges, y == kDead ? &none : &b->states[y].edges},
               [&](uint32_t lo, uint32_t hi, const auto& open) {
                 uint32_t tx = kDead, ty = kDead;
                 for (const auto& [e, which] : open) (which == 0 ? tx : ty) = e.to;
                 if (how == Both::kAnd && (tx == kDead || ty == kDead)) return;
                 if (how == Both::kMinus && tx == kDead) return;
                 append_edge(&edges, lo, hi, id_of(tx, ty));
               });
    budget->spend_bytes(static_cast<int64_t>(edges.size() * sizeof(CharDfa::Edge)));
    out.states[i].edges = std::move(edges);
  }
  return finish(std::move(out), budget);
}

}  // namespace

bool CharDfa::accepts(std::string_view text) const {
  if (states.empty()) return false;
  uint32_t s = 0;
  for (uint32_t c : code_points(text)) {
    const auto& edges = states[s].edges;
    auto it = std::find_if(edges.begin(), edges.end(), [c](const Edge& e) { return c >= e.lo && c <= e.hi; });
    if (it == edges.end()) return false;
    s = it->to;
  }
  return states[s].accept;
}

CharDfaPtr finish(CharDfa dfa, Budget* budget) {
  CharDfa t = trim(dfa);
  if (t.states.size() <= 4000) t = merge(t, budget);
  return std::make_shared<const CharDfa>(std::move(t));
}

CharDfaPtr dfa_of(const ExprPtr& e, Budget* budget) {
  Nfa nfa{{}, budget};
  uint32_t start = nfa.fresh();
  uint32_t end = nfa.add(e, start);
  if (!budget->alive()) return dfa_none();
  CharDfa out;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> ids;
  std::vector<std::vector<uint32_t>> sets;
  auto id_of = [&](std::vector<uint32_t> set) {
    auto [it, fresh] = ids.emplace(set, static_cast<uint32_t>(sets.size()));
    if (fresh) {
      budget->spend_bytes(static_cast<int64_t>(set.size() * 8));
      sets.push_back(std::move(set));
      out.states.emplace_back();
    }
    return it->second;
  };
  std::vector<uint32_t> first = {start};
  nfa.close(&first);
  id_of(first);
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!budget->spend_states(1)) return dfa_none();
    std::vector<uint32_t> set = sets[i];
    out.states[i].accept = std::binary_search(set.begin(), set.end(), end);
    std::vector<const std::vector<CharDfa::Edge>*> lists;
    for (uint32_t s : set) {
      if (!nfa.states[s].edges.empty()) lists.push_back(&nfa.states[s].edges);
    }
    std::vector<CharDfa::Edge> edges;
    std::map<std::vector<uint32_t>, uint32_t> closed;  // kernels seen at this state
    for_pieces(lists, [&](uint32_t lo, uint32_t hi, const auto& open) {
      if (!budget->alive()) return;
      std::vector<uint32_t> targets;
      for (const auto& [e2, which] : open) targets.push_back(e2.to);
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      auto it = closed.find(targets);
      if (it == closed.end()) {
        std::vector<uint32_t> kernel = targets;
        nfa.close(&targets);
        it = closed.emplace(std::move(kernel), id_of(std::move(targets))).first;
      }
      append_edge(&edges, lo, hi, it->second);
    });
    out.states[i].edges = std::move(edges);
  }
  return finish(std::move(out), budget);
}

CharDfaPtr dfa_any() {
  static const CharDfaPtr any = [] {
    CharDfa d;
    d.states.push_back({{{0, 0xD7FF, 0}, {0xE000, 0x10FFFF, 0}}, true});
    return std::make_shared<const CharDfa>(std::move(d));
  }();
  return any;
}

CharDfaPtr dfa_none() {
  static const CharDfaPtr none = [] {
    CharDfa d;
    d.states.emplace_back();
    return std::make_shared<const CharDfa>(std::move(d));
  }();
  return none;
}

CharDfaPtr dfa_text(std::string_view text) {
  CharDfa d;
  d.states.emplace_back();
  for (uint32_t c : code_points(text)) {
    auto to = static_cast<uint32_t>(d.states.size());
    d.states.back().edges.push_back({c, c, to});
    d.states.emplace_back();
  }
  d.states.back().accept = true;
  return std::make_shared<const CharDfa>(std::move(d));
}

CharDfaPtr dfa_texts(const std::vector<std::string>& texts, Budget* budget) {
  CharDfa d;
  d.states.emplace_back();
  for (const std::string& text : texts) {
    uint32_t s = 0;
    for (uint32_t c : code_points(text)) {
      if (!budget->spend_states(1)) return dfa_none();
      auto& edges = d.states[s].edges;
      auto it = std::lower_bound(edges.begin(), edges.end(), c,
                                 [](const CharDfa::Edge& e, uint32_t v) { return e.lo < v; });
      if (it != edges.end() && it->lo == c) {
        s = it->to;
        continue;
      }
      auto to = static_cast<uint32_t>(d.states.size());
      edges.insert(it, {c, c, to});
      d.states.emplace_back();
      s = to;
    }
    d.states[s].accept = true;
  }
  return std::make_shared<const CharDfa>(std::move(d));
}

CharDfaPtr dfa_length(uint32_t min, uint32_t max, Budget* budget) {
  CharDfa d;
  uint32_t n = max == kUnbounded ? min : max;
  if (min > max || !budget->spend_states(int64_t{n} + 1)) return dfa_none();
  d.states.resize(n + 1);
  for (uint32_t i = 0; i <= n; ++i) {
    d.states[i].accept = i >= min;
    uint32_t to = i < n ? i + 1 : n;
    if (i < n || max == kUnbounded) d.states[i].edges = {{0, 0xD7FF, to}, {0xE000, 0x10FFFF, to}};
  }
  return std::make_shared<const CharDfa>(std::move(d));
}

CharDfaPtr intersect(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget) {
  return product(a, b, Both::kAnd, budget);
}
CharDfaPtr unite(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget) {
  return product(a, b, Both::kOr, budget);
}
CharDfaPtr subtract(const CharDfaPtr& a, const CharDfaPtr& b, Budget* budget) {
  return product(a, b, Both::kMinus, budget);
}

}  // namespace deepinfer::grammar
