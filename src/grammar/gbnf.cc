// The GBNF-like spelling.
#include "grammar/ebnf.h"
#include "grammar/ebnf_reader.h"

namespace deepinfer::grammar {
namespace {

class Gbnf : public EbnfReader {
 public:
  using EbnfReader::EbnfReader;

  Result<Grammar> run() {
    if (!valid_utf8(s_)) fail("not valid UTF-8");
    space(true);
    while (more() && status_.ok()) {
      std::string n = name(true);
      if (n.empty()) return fail("a rule name expected"), finish("root");
      space(false);
      if (!take("::=")) return fail("'::=' expected"), finish("root");
      RuleId id = rule(n);
      if (grammar_.rules[id].body != nullptr)
        return fail("rule '" + n + "' is defined twice"), finish("root");
      space(true);
      ExprPtr body = alternatives(0);
      grammar_.rules[id].body = body;
      space(true);
    }
    return finish("root");
  }

 private:
  void space(bool lines) {
    while (more()) {
      char c = peek();
      if (c == '#') {
        while (more() && peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  // A new line ends a rule, unless it is inside parentheses or the next line goes on with '|'.
  bool next_line_continues() {
    size_t saved = at_;
    space(true);
    if (peek() == '|') return true;
    at_ = saved;
    return false;
  }

  ExprPtr alternatives(int depth) {
    if (depth > kMaxDepth) return fail("nested too deep", Code::kResourceExhausted);
    std::vector<ExprPtr> kids;
    do {
      space(true);
      kids.push_back(sequence(depth));
      space(depth > 0);
      if (depth == 0 && peek() == '\n') next_line_continues();
    } while (status_.ok() && take("|"));
    return make_alt(std::move(kids));
  }

  ExprPtr sequence(int depth) {
    std::vector<ExprPtr> kids;
    for (;;) {
      space(depth > 0);
      if (!more() || !status_.ok() || !budget_->alive()) break;
      char c = peek();
      if (c == '|' || c == ')' || c == '\n') break;
      kids.push_back(quantified(atom(depth)));
    }
    return make_seq(std::move(kids));
  }

  ExprPtr atom(int depth) {
    if (take("\"")) return make_bytes(quoted());
    if (take("[")) return bracket();
    if (take(".")) return make_class(CharSet::any(), Spelling::kRaw);
    if (take("(")) {
      ExprPtr e = alternatives(depth + 1);
      space(true);
      if (!take(")")) return fail("')' expected");
      return e;
    }
    std::string n = name(true);
    if (n.empty()) return fail(std::string("unexpected '") + peek() + "'");
    return make_rule(rule(n));
  }

  uint32_t member() {
    uint32_t c = 0;
    if (take("\\")) {
      if (!escape(&c)) fail("unknown escape");
      return c;
    }
    size_t n = 1;
    while (at_ + n < s_.size() && (static_cast<uint8_t>(s_[at_ + n]) & 0xC0) == 0x80) ++n;
    c = code_points(s_.substr(at_, n))[0];
    at_ += n;
    return c;
  }
  ExprPtr bracket() {
    bool inverted = take("^");
    std::vector<CharSet::Range> ranges;
    while (more() && peek() != ']' && status_.ok()) {
      uint32_t lo = member(), hi = lo;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        if (!more()) break;
        hi = member();
        if (hi < lo) return fail("range out of order");
      }
      ranges.push_back({lo, hi});
    }
    if (!take("]")) return fail("']' expected");
    CharSet set = CharSet::of_ranges(std::move(ranges));
    return make_class(inverted ? set.inverted() : set, Spelling::kRaw);
  }

  ExprPtr quantified(ExprPtr e) {
    for (int n = 0;; ++n) {
      if (n > kMaxQuantifiers) return fail("too many quantifiers in a row", Code::kResourceExhausted);
      if (take("*")) {
        e = make_repeat(e, 0, kUnbounded);
      } else if (take("+")) {
        e = make_repeat(e, 1, kUnbounded);
      } else if (take("?")) {
        e = make_repeat(e, 0, 1);
      } else if (take("{")) {
        uint32_t min = 0, max = 0;
        if (!number(&min) && peek() != ',') return fail("a number expected");
        max = min;
        if (take(",") && !number(&max)) max = kUnbounded;
        if (!take("}")) return fail("'}' expected");
        e = bounded(e, min, max);
      } else {
        return e;
      }
      if (!status_.ok()) return make_never();
    }
  }
};

}  // namespace

Result<Grammar> parse_gbnf(std::string_view text, Budget* budget) {
  return Gbnf(text, budget).run();
}

}  // namespace deepinfer::grammar
