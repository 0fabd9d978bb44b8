// Building and printing expressions.
#include "grammar/expr.h"

#include <fmt/format.h>

namespace deepinfer::grammar {
namespace {

std::shared_ptr<Expr> node(Expr::Kind kind) {
  auto e = std::make_shared<Expr>();
  e->kind = kind;
  return e;
}

std::string printable(std::string_view bytes) {
  std::string out;
  for (char ch : bytes) {
    auto b = static_cast<uint8_t>(ch);
    if (ch == '"' || ch == '\\') {
      out += '\\';
      out += ch;
    } else if (ch == '\n') {
      out += "\\n";
    } else if (b < 0x20 || b == 0x7F) {
      out += fmt::format("\\x{:02X}", b);
    } else {
      out += ch;
    }
  }
  return out;
}

std::string class_text(const CharSet& set) {
  std::string out = "[";
  auto one = [&](uint32_t c) {
    if (c < 0x20 || c == 0x7F || c > 0x7E) {
      out += fmt::format("\\u{{{:X}}}", c);
    } else {
      if (c == ']' || c == '\\' || c == '-' || c == '^') out += '\\';
      out += static_cast<char>(c);
    }
  };
  for (CharSet::Range r : set.ranges()) {
    one(r.lo);
    if (r.hi > r.lo) out += '-', one(r.hi);
  }
  return out + "]";
}

std::string bounds_text(uint32_t min, uint32_t max) {
  if (max == kUnbounded) return min == 0 ? "*" : min == 1 ? "+" : fmt::format("{{{},}}", min);
  if (min == 0 && max == 1) return "?";
  return min == max ? fmt::format("{{{}}}", min) : fmt::format("{{{},{}}}", min, max);
}

std::string rule_name(const Grammar& g, RuleId id) {
  return fmt::format("{}#{}", g.rules[id].name, id);
}

void print(const Grammar& g, const ExprPtr& e, bool inside, std::string* out) {
  switch (e->kind) {
    case Expr::Kind::kEmpty:
      *out += "\"\"";
      return;
    case Expr::Kind::kNever:
      *out += "never";
      return;
    case Expr::Kind::kBytes:
      *out += '"' + printable(e->bytes) + '"';
      return;
    case Expr::Kind::kClass:
      *out += class_text(e->set) + (e->spelling == Spelling::kJson ? "j" : "");
      return;
    case Expr::Kind::kRule:
      *out += rule_name(g, e->rule);
      return;
    case Expr::Kind::kToken:
      *out += fmt::format("<{}>", e->token);
      return;
    case Expr::Kind::kDfa:
      *out += "(automaton)";
      return;
    case Expr::Kind::kAnchorStart:
      *out += "^";
      return;
    case Expr::Kind::kAnchorEnd:
      *out += "$";
      return;
    case Expr::Kind::kRepeat:
      print(g, e->kids[0], true, out);
      *out += bounds_text(e->min, e->max);
      return;
    case Expr::Kind::kSeq:
    case Expr::Kind::kAlt:
      break;
  }
  const char* between = e->kind == Expr::Kind::kSeq ? " " : " | ";
  if (inside) *out += '(';
  for (size_t i = 0; i < e->kids.size(); ++i) {
    if (i > 0) *out += between;
    print(g, e->kids[i], true, out);
  }
  if (inside) *out += ')';
}

}  // namespace

ExprPtr make_empty() {
  return node(Expr::Kind::kEmpty);
}
ExprPtr make_never() {
  return node(Expr::Kind::kNever);
}
ExprPtr make_bytes(std::string bytes) {
  if (bytes.empty()) return make_empty();
  auto e = node(Expr::Kind::kBytes);
  e->bytes = std::move(bytes);
  return e;
}
ExprPtr make_class(CharSet set, Spelling spelling) {
  if (set.empty()) return make_never();
  auto e = node(Expr::Kind::kClass);
  e->set = std::move(set);
  e->spelling = spelling;
  return e;
}
ExprPtr make_seq(std::vector<ExprPtr> kids) {
  auto e = node(Expr::Kind::kSeq);
  for (ExprPtr& k : kids) {
    if (k->kind == Expr::Kind::kNever) return make_never();
    if (k->kind == Expr::Kind::kEmpty) continue;
    if (k->kind == Expr::Kind::kSeq) {
      e->kids.insert(e->kids.end(), k->kids.begin(), k->kids.end());
    } else {
      e->kids.push_back(std::move(k));
    }
  }
  if (e->kids.empty()) return make_empty();
  if (e->kids.size() == 1) return e->kids[0];
  return e;
}
ExprPtr make_alt(std::vector<ExprPtr> kids) {
  auto e = node(Expr::Kind::kAlt);
  for (ExprPtr& k : kids) {
    if (k->kind == Expr::Kind::kNever) continue;
    if (k->kind == Expr::Kind::kAlt) {
      e->kids.insert(e->kids.end(), k->kids.begin(), k->kids.end());
    } else {
      e->kids.push_back(std::move(k));
    }
  }
  if (e->kids.empty()) return make_never();
  if (e->kids.size() == 1) return e->kids[0];
  return e;
}
ExprPtr make_repeat(ExprPtr kid, uint32_t min, uint32_t max) {
  if (max == 0 || kid->kind == Expr::Kind::kEmpty) return make_empty();
  if (kid->kind == Expr::Kind::kNever) return min == 0 ? make_empty() : make_never();
  if (min == 1 && max == 1) return kid;
  auto e = node(Expr::Kind::kRepeat);
  e->kids.push_back(std::move(kid));
  e->min = min;
  e->max = max;
  return e;
}
ExprPtr make_rule(RuleId rule) {
  auto e = node(Expr::Kind::kRule);
  e->rule = rule;
  return e;
}
ExprPtr make_token(int32_t id) {
  auto e = node(Expr::Kind::kToken);
  e->token = id;
  return e;
}
ExprPtr make_dfa(std::shared_ptr<const CharDfa> dfa, Spelling spelling) {
  auto e = node(Expr::Kind::kDfa);
  e->dfa = std::move(dfa);
  e->spelling = spelling;
  return e;
}
ExprPtr make_anchor(bool start) {
  return node(start ? Expr::Kind::kAnchorStart : Expr::Kind::kAnchorEnd);
}
ExprPtr make_text(std::string_view text, Spelling spelling) {
  return make_bytes(spelling == Spelling::kJson ? json_spelling(text) : std::string(text));
}

std::string json_spelling(std::string_view text) {
  std::string out;
  for (char ch : text) {
    switch (ch) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\f':
        out += "\\f";
        continue;
      case '\r':
        out += "\\r";
        continue;
      default:
        break;
    }
    if (static_cast<uint8_t>(ch) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(ch));
    } else {
      out += ch;
    }
  }
  return out;
}

std::string to_text(const Grammar& grammar) {
  std::string out;
  for (size_t i = 0; i < grammar.rules.size(); ++i) {
    const Rule& r = grammar.rules[i];
    auto id = static_cast<RuleId>(i);
    out += (id == grammar.root ? "root " : "") + rule_name(grammar, id) + " ::= ";
    if (r.kind == Rule::Kind::kBody) {
      print(grammar, r.body == nullptr ? make_never() : r.body, false, &out);
    } else if (r.kind == Rule::Kind::kCounted) {
      print(grammar, r.body, true, &out);
      out += bounds_text(r.min, r.max) + " counted";
    } else if (r.kind == Rule::Kind::kLoop) {
      out += "elements" + bounds_text(r.loop.min, r.loop.max);
      if (r.loop.need > 0) out += fmt::format(" with {} marked", r.loop.need);
      for (const auto& position : r.loop.positions) {
        out += " :";
        for (const LoopRule::Edge& e : position)
          out += ' ' + rule_name(grammar, e.rule) + (e.bump ? "!" : "");
      }
    } else {
      out += r.members.any_order ? "members in any order" : "members in order";
      out += bounds_text(r.members.min, r.members.max);
      for (const auto& p : r.members.properties)
        out += ' ' + rule_name(grammar, p.first) + (p.required ? "" : "?");
      for (const auto& o : r.members.others) out += " other " + rule_name(grammar, o.first);
    }
    out += '\n';
  }
  return out;
}

}  // namespace deepinfer::grammar
