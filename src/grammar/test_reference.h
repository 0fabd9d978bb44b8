// For tests: the slow, obvious meaning of a grammar, to hold the fast one against. Readings are kept as whole
// stacks of what is still to come; nothing is shared, merged or computed in advance. REQUIRES rules without
// left recursion and without dead ends (every rule can be finished). Threads: one object per test.
#pragma once

#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "grammar/expr.h"

namespace deepinfer::grammar {

class Reference {
 public:
  explicit Reference(const Grammar& grammar) : g_(grammar) {
    for (Rule& r : g_.rules) {
      if (r.kind == Rule::Kind::kCounted)
        r.kind = Rule::Kind::kBody, r.body = make_repeat(r.body, r.min, r.max);
    }
    now_ = closed({{{Kind::kRule, nullptr, grammar.root, 0}}});
  }

  bool step(uint8_t byte) {
    std::set<Stack> next;
    for (const Stack& s : now_) {
      if (s.empty()) continue;
      const Task& top = s.back();
      if (top.kind != Kind::kByte || byte < top.a || byte > top.b) continue;
      next.insert(Stack(s.begin(), s.end() - 1));
    }
    now_ = closed(std::move(next));
    return !now_.empty();
  }
  bool step_token(int32_t token) {
    std::set<Stack> next;
    for (const Stack& s : now_) {
      if (!s.empty() && s.back().kind == Kind::kToken && s.back().a == static_cast<uint64_t>(token))
        next.insert(Stack(s.begin(), s.end() - 1));
    }
    now_ = closed(std::move(next));
    return !now_.empty();
  }
  bool step(std::string_view bytes) {
    for (char c : bytes) {
      if (!step(static_cast<uint8_t>(c))) return false;
    }
    return true;
  }
  bool accepting() const { return now_.count({}) != 0; }
  size_t readings() const { return now_.size(); }

 private:
  enum class Kind { kExpr, kRule, kRepeat, kLoop, kByte, kToken };
  struct Task {
    Kind kind = Kind::kExpr;
    const Expr* e = nullptr;
    uint64_t a = 0, b = 0;
    auto operator<=>(const Task&) const = default;
  };
  using Stack = std::vector<Task>;  // the back comes first

  std::set<Stack> closed(std::set<Stack> todo) const {
    std::set<Stack> seen, out;
    while (!todo.empty()) {
      Stack s = *todo.begin();
      todo.erase(todo.begin());
      if (!seen.insert(s).second) continue;
      if (s.empty() || s.back().kind == Kind::kByte || s.back().kind == Kind::kToken) {
        out.insert(s);
        continue;
      }
      Task t = s.back();
      s.pop_back();
      expand(t, s, &todo);
    }
    return out;
  }

  void expand(const Task& t, const Stack& rest, std::set<Stack>* out) const {
    auto with = [&](std::vector<Task> tasks) {
      Stack s = rest;
      s.insert(s.end(), tasks.rbegin(), tasks.rend());
      out->insert(std::move(s));
    };
    if (t.kind == Kind::kRule) {
      const Rule& r = g_.rules[t.a];
      if (r.kind == Rule::Kind::kBody) return with({{Kind::kExpr, r.body.get(), 0, 0}});
      return with({{Kind::kLoop, nullptr, t.a, 0}});
    }
    if (t.kind == Kind::kLoop) {
      const LoopRule& l = g_.rules[t.a].loop;
      if (t.b >= l.min) with({});
      if (t.b >= l.max) return;
      for (const LoopRule::Edge& e : l.positions[std::min<size_t>(t.b, l.positions.size() - 1)])
        with({{Kind::kRule, nullptr, e.rule, 0}, {Kind::kLoop, nullptr, t.a, t.b + 1}});
      return;
    }
    if (t.kind == Kind::kRepeat) {
      const Expr* e = t.e;
      if (t.a >= e->min) with({});
      // Counts beyond the minimum are one where there is no maximum.
      uint64_t next =
          e->max == kUnbounded ? std::min<uint64_t>(t.a + 1, std::max<uint64_t>(e->min, 1)) : t.a + 1;
      if (e->max == kUnbounded || t.a < e->max)
        with({{Kind::kExpr, e->kids[0].get(), 0, 0}, {Kind::kRepeat, e, next, 0}});
      return;
    }
    const Expr* e = t.e;
    switch (e->kind) {
      case Expr::Kind::kEmpty:
        return with({});
      case Expr::Kind::kBytes: {
        std::vector<Task> bytes;
        for (char c : e->bytes)
          bytes.push_back({Kind::kByte, nullptr, static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
        return with(bytes);
      }
      case Expr::Kind::kClass:
        for (const BytePath& p : e->spelling == Spelling::kJson ? json_paths(e->set) : utf8_paths(e->set)) {
          std::vector<Task> bytes;
          for (ByteRange r : p) bytes.push_back({Kind::kByte, nullptr, r.lo, r.hi});
          with(bytes);
        }
        return;
      case Expr::Kind::kSeq: {
        std::vector<Task> tasks;
        for (const ExprPtr& k : e->kids) tasks.push_back({Kind::kExpr, k.get(), 0, 0});
        return with(tasks);
      }
      case Expr::Kind::kAlt:
        for (const ExprPtr& k : e->kids) with({{Kind::kExpr, k.get(), 0, 0}});
        return;
      case Expr::Kind::kRepeat:
        return with({{Kind::kRepeat, e, 0, 0}});
      case Expr::Kind::kRule:
        return with({{Kind::kRule, nullptr, e->rule, 0}});
      case Expr::Kind::kToken:
        return with({{Kind::kToken, nullptr, static_cast<uint64_t>(e->token), 0}});
      default:
        return;
    }
  }

  Grammar g_;
  std::set<Stack> now_;
};

}  // namespace deepinfer::grammar
