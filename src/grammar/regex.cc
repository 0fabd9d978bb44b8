// Recursive descent over the pattern, then anchors are turned into free text in front and behind.
#include "grammar/regex.h"

#include <optional>

namespace deepinfer::grammar {
namespace {

constexpr int kMaxGroups = 200;  // nested

CharSet digits() {
  return CharSet::of('0', '9');
}
CharSet word_chars() {
  CharSet s = CharSet::of('0', '9');
  s.add('A', 'Z');
  s.add('a', 'z');
  s.add('_', '_');
  return s;
}
CharSet spaces() {
  return CharSet::of_ranges({{9, 13},
                             {32, 32},
                             {0xA0, 0xA0},
                             {0x1680, 0x1680},
                             {0x2000, 0x200A},
                             {0x2028, 0x2029},
                             {0x202F, 0x202F},
                             {0x205F, 0x205F},
                             {0x3000, 0x3000},
                             {0xFEFF, 0xFEFF}});
}

class Parser {
 public:
  Parser(std::string_view pattern, const RegexOptions& options, Budget* budget)
      : text_(code_points(pattern)), options_(options), budget_(budget) {}

  Result<ExprPtr> run() {
    ExprPtr e = alternatives(0);
    if (status_.ok() && at_ < text_.size()) fail(Code::kInvalidArgument, "unmatched ')'");
    if (!status_.ok()) return status_;
    return e;
  }

 private:
  bool more() const { return at_ < text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(uint32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void fail(Code code, std::string_view what) {
    if (status_.ok()) status_ = error(code, "regular expression, character {}: {}", at_, what);
    at_ = text_.size();
  }

  ExprPtr alternatives(int depth) {
    if (depth > kMaxGroups) return fail(Code::kResourceExhausted, "groups nested too deep"), make_never();
    std::vector<ExprPtr> kids;
    do {
      kids.push_back(sequence(depth));
    } while (status_.ok() && take('|'));
    return make_alt(std::move(kids));
  }

  ExprPtr sequence(int depth) {
    std::vector<ExprPtr> kids;
    while (more() && peek() != '|' && peek() != ')' && status_.ok()) {
      if (!budget_->alive()) return status_ = budget_->status(), make_never();
      ExprPtr atom = term(depth);
      if (!status_.ok()) return make_never();
      kids.push_back(quantified(std::move(atom)));
    }
    // Not make_seq: a class that matches nothing ([]) must stay visible only as never, which it does.
    return make_seq(std::move(kids));
  }

  bool number(uint32_t* value) {
    if (peek() < '0' || peek() > '9' || !more()) return false;
    uint64_t v = 0;
    while (more() && peek() >= '0' && peek() <= '9')
      v = std::min<uint64_t>(v * 10 + (text_[at_++] - '0'), 1u << 30);
    *value = static_cast<uint32_t>(v);
    return true;
  }

  ExprPtr quantified(ExprPtr atom) {
    uint32_t min = 1, max = 1;
    if (take('*')) {
      min = 0, max = kUnbounded;
    } else if (take('+')) {
      max = kUnbounded;
    } else if (take('?')) {
      min = 0;
    } else if (peek() == '{') {
      ++at_;
      if (!number(&min)) return fail(Code::kInvalidArgument, "a quantifier needs a number"), make_never();
      max = min;
      if (take(',') && !number(&max)) max = kUnbounded;
      if (!take('}')) return fail(Code::kInvalidArgument, "'}' expected"), make_never();
      if (max < min) return fail(Code::kInvalidArgument, "bounds out of order"), make_never();
      int64_t largest = max == kUnbounded ? min : max;
      if (largest > budget_->limits().repeat)
        return fail(Code::kResourceExhausted, fmt::format("repetition above {}", budget_->limits().repeat)),
               make_never();
    } else {
      return atom;
    }
    take('?');  // lazy: the same words
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      if (more()) return fail(Code::kInvalidArgument, "nothing to repeat"), make_never();
    }
    if (atom->kind == Expr::Kind::kAnchorStart || atom->kind == Expr::Kind::kAnchorEnd)
      return fail(Code::kUnsupported, "a repeated anchor"), make_never();
    return make_repeat(std::move(atom), min, max);
  }

  ExprPtr one(CharSet set) {
    if (options_.ignore_case) set = set.case_folded();
    return make_class(std::move(set), options_.spelling);
  }

  ExprPtr term(int depth) {
    uint32_t c = text_[at_++];
    switch (c) {
      case '^':
        return make_anchor(true);
      case '$':
        return make_anchor(false);
      case '(':
        return group(depth);
      case '[':
        return one(bracket());
      case '*':
      case '+':
      case '?':
      case '{':
        return fail(Code::kInvalidArgument, "nothing to repeat"), make_never();
      case '.':
        return one(options_.dot_all
                       ? CharSet::any()
                       : CharSet::of_ranges({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).inverted());
      case '\\': {
        uint32_t e = peek();
        if (e == 'b' || e == 'B')
          return fail(Code::kUnsupported, "word boundaries are not supported"), make_never();
        if (e >= '1' && e <= '9')
          return fail(Code::kUnsupported, "back-references are not supported"), make_never();
        if (e == 'k')
          return fail(Code::kUnsupported, "named back-references are not supported"), make_never();
        return one(escape(false));
      }
      default:
        return one(CharSet::of(c, c));
    }
  }

  ExprPtr group(int depth) {
    if (take('?')) {
      if (take(':')) {
      } else if (peek() == '<' && peek(1) != '=' && peek(1) != '!') {
        while (more() && !take('>')) ++at_;
      } else {
        return fail(Code::kUnsupported, "look-around and inline flags are not supported"), make_never();
      }
    }
    ExprPtr e = alternatives(depth + 1);
    if (status_.ok() && !take(')')) fail(Code::kInvalidArgument, "')' is missing");
    return e;
  }

  bool hex(int n, uint32_t* value) {
    *value = 0;
    for (int i = 0; i < n; ++i) {
      uint32_t c = peek();
      uint32_t d = c >= '0' && c <= '9'   ? c - '0'
                   : c >= 'a' && c <= 'f' ? c - 'a' + 10
                   : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                          : 99;
      if (d > 15 || !more()) return false;
      *value = *value * 16 + d;
      ++at_;
    }
    return true;
  }

  CharSet unicode_escape() {
    uint32_t v = 0;
    if (take('{')) {
      int n = 0;
      uint32_t d = 0;
      while (n < 8 && hex(1, &d)) v = v * 16 + d, ++n;
      if (n == 0 || !take('}') || v > 0x10FFFF) fail(Code::kInvalidArgument, "bad \\u{...}");
      return CharSet::of(v, v);
    }
    if (!hex(4, &v)) return fail(Code::kInvalidArgument, "bad \\u escape"), CharSet();
    if (v >= 0xD800 && v < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
      at_ += 2;
      uint32_t low = 0;
      if (!hex(4, &low) || low < 0xDC00 || low > 0xDFFF)
        return fail(Code::kInvalidArgument, "unpaired surrogate"), CharSet();
      v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    }
    return CharSet::of(v, v);
  }

  // After the backslash. `single` is set to false for escapes that are classes.
  CharSet escape(bool in_class, bool* single = nullptr) {
    if (!more()) return fail(Code::kInvalidArgument, "a backslash at the end"), CharSet();
    uint32_t c = text_[at_++];
    auto klass = [&](CharSet s) {
      if (single != nullptr) *single = false;
      return s;
    };
    auto just = [](uint32_t v) { return CharSet::of(v, v); };
    switch (c) {
      case 'd':
        return klass(digits());
      case 'D':
        return klass(digits().inverted());
      case 'w':
        return klass(word_chars());
      case 'W':
        return klass(word_chars().inverted());
      case 's':
        return klass(spaces());
      case 'S':
        return klass(spaces().inverted());
      case 't':
        return just(9);
      case 'n':
        return just(10);
      case 'v':
        return just(11);
      case 'f':
        return just(12);
      case 'r':
        return just(13);
      case '0':
        return just(0);
      case 'b':
        if (in_class) return just(8);
        break;
      case 'c': {
        uint32_t letter = peek();
        if ((letter | 32) < 'a' || (letter | 32) > 'z')
          return fail(Code::kInvalidArgument, "bad \\c escape"), CharSet();
        ++at_;
        return just(letter & 31);
      }
      case 'x': {
        uint32_t v = 0;
        if (!hex(2, &v)) return fail(Code::kInvalidArgument, "bad \\x escape"), CharSet();
        return just(v);
      }
      case 'u':
        return unicode_escape();
      case 'p':
      case 'P': {
        std::string name;
        if (!take('{')) return fail(Code::kInvalidArgument, "'{' expected after \\p"), CharSet();
        while (more() && peek() != '}' && name.size() < 64) append_utf8(text_[at_++], &name);
        CharSet set;
        if (!take('}') || !category_set(name, &set))
          return fail(Code::kUnsupported, fmt::format("unknown character property '{}'", name)), CharSet();
        return klass(c == 'p' ? set : set.inverted());
      }
      default:
        break;
    }
    bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    if (letter || (c >= '0' && c <= '9')) return fail(Code::kInvalidArgument, "unknown escape"), CharSet();
    return just(c);
  }

  CharSet bracket() {
    bool inverted = take('^');
    std::vector<CharSet::Range> ranges;
    auto append = [&](const CharSet& s) {
      ranges.insert(ranges.end(), s.ranges().begin(), s.ranges().end());
    };
    auto element = [&](bool* single) -> CharSet {
      *single = true;
      uint32_t c = text_[at_++];
      if (c == '\\') return escape(true, single);
      return CharSet::of(c, c);
    };
    while (more() && peek() != ']') {
      if (!budget_->alive()) return status_ = budget_->status(), CharSet();
      bool single = true, high_single = true;
      CharSet low = element(&single);
      if (!status_.ok()) return {};
      if (peek() == '-' && at_ + 1 < text_.size() && peek(1) != ']') {
        ++at_;
        CharSet high = element(&high_single);
        if (!status_.ok()) return {};
        if (!single || !high_single) {
          // Annex B: a class on either side makes the hyphen a character.
          append(low);
          append(high);
          ranges.push_back({'-', '-'});
          continue;
        }
        if (low.empty() || high.empty())
          return fail(Code::kInvalidArgument, "a surrogate in a class"), CharSet();
        if (low.ranges()[0].lo > high.ranges()[0].lo)
          return fail(Code::kInvalidArgument, "range out of order"), CharSet();
        ranges.push_back({low.ranges()[0].lo, high.ranges()[0].lo});
      } else {
        append(low);
      }
    }
    if (!take(']')) return fail(Code::kInvalidArgument, "']' is missing"), CharSet();
    CharSet set = CharSet::of_ranges(std::move(ranges));
    if (options_.ignore_case) set = set.case_folded();
    return inverted ? set.inverted() : set;
  }

  std::vector<uint32_t> text_;
  RegexOptions options_;
  Budget* budget_;
  size_t at_ = 0;
  Status status_;
};

bool has_anchor(const ExprPtr& e) {
  if (e->kind == Expr::Kind::kAnchorStart || e->kind == Expr::Kind::kAnchorEnd) return true;
  for (const ExprPtr& k : e->kids) {
    if (has_anchor(k)) return true;
  }
  return false;
}

// Writes out what ^ and $ mean: alternatives are looked at one by one; anchors elsewhere than at the ends of
// a sequence are refused (nothing or nearly nothing could match them).
class Anchors {
 public:
  Anchors(const RegexOptions& options, Budget* budget) : options_(options), budget_(budget) {}

  ExprPtr apply(const ExprPtr& e) {
    if (!budget_->spend_branches(1)) return make_never();
    if (e->kind == Expr::Kind::kAlt && has_anchor(e)) {
      std::vector<ExprPtr> kids;
      for (const ExprPtr& k : e->kids) kids.push_back(apply(k));
      return make_alt(std::move(kids));
    }
    std::vector<ExprPtr> kids = e->kind == Expr::Kind::kSeq ? e->kids : std::vector<ExprPtr>{e};
    // An alternative with anchors at an end is multiplied out.
    for (size_t i : {size_t{0}, kids.size() - 1}) {
      if (kids.empty() || kids[i]->kind != Expr::Kind::kAlt || !has_anchor(kids[i])) continue;
      std::vector<ExprPtr> out;
      for (const ExprPtr& choice : kids[i]->kids) {
        std::vector<ExprPtr> line = kids;
        line[i] = choice;
        out.push_back(apply(make_seq(std::move(line))));
      }
      return make_alt(std::move(out));
    }
    bool start = false, end = false;
    while (!kids.empty() && kids.front()->kind == Expr::Kind::kAnchorStart)
      kids.erase(kids.begin()), start = true;
    while (!kids.empty() && kids.back()->kind == Expr::Kind::kAnchorEnd) kids.pop_back(), end = true;
    // "^$" in either order at one place.
    while (kids.size() == 1 && has_anchor(kids[0]) && kids[0]->kids.empty()) {
      (kids[0]->kind == Expr::Kind::kAnchorStart ? start : end) = true;
      kids.clear();
    }
    for (const ExprPtr& k : kids) {
      if (has_anchor(k)) {
        budget_->fail(Status(Code::kUnsupported, "regular expression: an anchor that is not at an end"));
        return make_never();
      }
    }
    ExprPtr anything = make_repeat(make_class(CharSet::any(), options_.spelling), 0, kUnbounded);
    if (!start && options_.search) kids.insert(kids.begin(), anything);
    if (!end && options_.search) kids.push_back(anything);
    return make_seq(std::move(kids));
  }

 private:
  RegexOptions options_;
  Budget* budget_;
};

}  // namespace

Result<ExprPtr> parse_regex(std::string_view pattern, const RegexOptions& options, Budget* budget) {
  DI_ASSIGN(ExprPtr e, Parser(pattern, options, budget).run());
  if (e->kind == Expr::Kind::kNever) return e;
  ExprPtr out = Anchors(options, budget).apply(e);
  if (!budget->status().ok()) return budget->status();
  return out;
}

}  // namespace deepinfer::grammar
