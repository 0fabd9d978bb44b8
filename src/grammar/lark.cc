// The Lark-like spelling.
#include <cctype>

#include "grammar/ebnf.h"
#include "grammar/ebnf_reader.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

struct Common {
  std::string_view name, pattern;
};
constexpr Common kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)"},
    {"FLOAT", "(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"}};

class Lark : public EbnfReader {
 public:
  using EbnfReader::EbnfReader;

  Result<Grammar> run() {
    if (!valid_utf8(s_)) fail("not valid UTF-8");
    find_ignores();
    at_ = 0;
    for (space(true); more() && status_.ok(); space(true)) statement();
    if (status_.ok() && ignored_ && ids_.count("start") != 0) {
      // Ignored text may also stand in front of everything.
      RuleId inner = ids_["start"], outer = grammar_.add("start");
      grammar_.rules[outer].body = make_seq({between(), make_rule(inner)});
      ids_["start"] = outer;
    }
    return finish("start");
  }

 private:
  void space(bool lines) {
    while (more()) {
      if (take("//") || peek() == '#') {
        while (more() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || (lines && peek() == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }
  // Whether there is a %ignore at all must be known before the first rule is read.
  void find_ignores() {
    ignored_ = s_.starts_with("%ignore") || s_.find("\n%ignore") != std::string_view::npos;
    if (ignored_) ignore_rule_ = rule("\x01ignore");
  }
  ExprPtr between() { return make_rule(ignore_rule_); }

  void statement() {
    if (take("%ignore")) {
      space(false);
      terminal_ = true;
      ExprPtr e = alternatives(0);
      ignores_.push_back(e);
      // All of them so far, any number of times; the last statement leaves the whole list.
      grammar_.rules[ignore_rule_].body = make_repeat(make_alt(ignores_), 0, kUnbounded);
      return;
    }
    if (take("%import")) return import();
    if (peek() == '%') {
      fail("this directive is not supported", Code::kUnsupported);
      return;
    }
    while (peek() == '?' || peek() == '!') ++at_;
    std::string n = name(false);
    if (n.empty()) return void(fail("a rule name expected"));
    if (peek() == '{') return void(fail("templates are not supported", Code::kUnsupported));
    if (take(".")) {
      uint32_t priority = 0;
      take("-");
      number(&priority);
    }
    space(false);
    if (!take(":")) return void(fail("':' expected"));
    RuleId id = rule(n);
    if (grammar_.rules[id].body != nullptr) return void(fail("rule '" + n + "' is defined twice"));
    terminal_ = std::isupper(static_cast<unsigned char>(n[n[0] == '_' && n.size() > 1 ? 1 : 0])) != 0;
    ExprPtr body = alternatives(0);
    grammar_.rules[id].body = body;
  }

  void import() {
    space(false);
    if (!take("common.")) return void(fail("only %import common.NAME is supported", Code::kUnsupported));
    std::vector<std::string> names;
    if (take("(")) return void(fail("import one name at a time", Code::kUnsupported));
    std::string n = name(false), alias = n;
    space(false);
    if (take("->")) {
      space(false);
      alias = name(false);
    }
    for (const Common& c : kCommon) {
      if (c.name != n) continue;
      Result<ExprPtr> e = parse_regex(c.pattern, {}, budget_);
      if (!e.ok()) return void(fail(e.status().message(), e.status().code()));
      grammar_.rules[rule(alias)].body = *e;
      return;
    }
    fail("there is no common terminal '" + n + "'");
  }

  bool at_rule_end() {
    if (!more()) return true;
    if (peek() != '\n') return false;
    size_t saved = at_;
    space(true);
    bool goes_on = peek() == '|';
    if (!goes_on) at_ = saved;
    return !goes_on;
  }

  ExprPtr alternatives(int depth) {
    if (depth > kMaxDepth) return fail("nested too deep", Code::kResourceExhausted);
    std::vector<ExprPtr> kids;
    do {
      kids.push_back(sequence(depth));
      if (depth == 0) at_rule_end();
    } while (status_.ok() && take("|"));
    return make_alt(std::move(kids));
  }

  ExprPtr sequence(int depth) {
    std::vector<ExprPtr> kids;
    for (;;) {
      space(depth > 0);
      if (!more() || !status_.ok() || !budget_->alive()) break;
      char c = peek();
      if (c == '|' || c == ')' || c == ']' || c == '\n') break;
      if (take("->")) {
        space(false);
        name(false);
        continue;
      }
      kids.push_back(quantified(atom(depth)));
    }
    return make_seq(std::move(kids));
  }

  // A terminal used in a rule may be followed by what is ignored.
  ExprPtr terminal(ExprPtr e) { return ignored_ && !terminal_ ? make_seq({std::move(e), between()}) : e; }

  ExprPtr atom(int depth) {
    if (take("\"")) return terminal(literal());
    if (peek() == '/') return terminal(regex());
    if (take("(")) {
      ExprPtr e = alternatives(depth + 1);
      space(true);
      return take(")") ? e : fail("')' expected");
    }
    if (take("[")) {
      ExprPtr e = alternatives(depth + 1);
      space(true);
      return take("]") ? make_repeat(e, 0, 1) : fail("']' expected");
    }
    std::string n = name(false);
    if (n.empty()) return fail(std::string("unexpected '") + peek() + "'");
    ExprPtr e = make_rule(rule(n));
    bool is_terminal = std::isupper(static_cast<unsigned char>(n[n[0] == '_' && n.size() > 1 ? 1 : 0])) != 0;
    return is_terminal ? terminal(std::move(e)) : e;
  }

  ExprPtr literal() {
    std::string text = quoted();
    if (take("..")) {
      if (!take("\"")) return fail("a literal expected after '..'");
      std::vector<uint32_t> lo = code_points(text), hi = code_points(quoted());
      if (lo.size() != 1 || hi.size() != 1 || lo[0] > hi[0])
        return fail("a range needs two single characters in order");
      return make_class(CharSet::of(lo[0], hi[0]), Spelling::kRaw);
    }
    if (!take("i")) return make_bytes(std::move(text));
    std::vector<ExprPtr> kids;
    for (uint32_t c : code_points(text))
      kids.push_back(make_class(CharSet::of(c, c).case_folded(), Spelling::kRaw));
    return make_seq(std::move(kids));
  }

  ExprPtr regex() {
    ++at_;
    size_t from = at_;
    bool in_class = false;
    while (more() && (peek() != '/' || in_class) && peek() != '\n') {
      if (peek() == '\\')
        ++at_;
      else if (peek() == '[')
        in_class = true;
      else if (peek() == ']')
        in_class = false;
      ++at_;
    }
    if (at_ >= s_.size() || peek() != '/') return fail("a regular expression does not end");
    std::string_view pattern = s_.substr(from, at_ - from);
    ++at_;
    RegexOptions options;
    for (; more(); ++at_) {
      if (peek() == 'i')
        options.ignore_case = true;
      else if (peek() == 's')
        options.dot_all = true;
      else if (peek() != 'u' && peek() != 'm')
        break;
    }
    Result<ExprPtr> e = parse_regex(pattern, options, budget_);
    return e.ok() ? *e : fail(e.status().message(), e.status().code());
  }

  ExprPtr quantified(ExprPtr e) {
    for (int n = 0;; ++n) {
      if (n > kMaxQuantifiers) return fail("too many quantifiers in a row", Code::kResourceExhausted);
      size_t saved = at_;
      space(false);
      if (peek() != '~') at_ = saved;
      if (take("*")) {
        e = make_repeat(e, 0, kUnbounded);
      } else if (take("+")) {
        e = make_repeat(e, 1, kUnbounded);
      } else if (take("?")) {
        e = make_repeat(e, 0, 1);
      } else if (take("~")) {
        space(false);
        uint32_t min = 0, max = 0;
        if (!number(&min)) return fail("a number expected after '~'");
        max = min;
        if (take("..") && !number(&max)) return fail("a number expected after '..'");
        e = bounded(e, min, max);
      } else {
        return e;
      }
      if (!status_.ok()) return make_never();
    }
  }

  bool ignored_ = false, terminal_ = false;
  RuleId ignore_rule_ = 0;
  std::vector<ExprPtr> ignores_;
};

}  // namespace

Result<Grammar> parse_lark(std::string_view text, Budget* budget) {
  return Lark(text, budget).run();
}

}  // namespace deepinfer::grammar
