// What both EBNF readers share: a cursor with line numbers, names, quoted literals, bounds, rule numbering.
// Private to the room.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

class EbnfReader {
 public:
  EbnfReader(std::string_view text, Budget* budget) : s_(text), budget_(budget) {
    grammar_.inline_regular = true;
  }

 protected:
  static constexpr int kMaxDepth = 100;  // nested groups
  static constexpr int kMaxQuantifiers = 8;

  bool more() const { return at_ < s_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < s_.size() ? s_[at_ + ahead] : '\0'; }
  bool take(std::string_view w) {
    if (at_ > s_.size() || s_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  ExprPtr fail(std::string_view what, Code code = Code::kInvalidArgument) {
    if (status_.ok()) {
      size_t line = 1;
      for (size_t i = 0; i < at_ && i < s_.size(); ++i) line += s_[i] == '\n' ? 1 : 0;
      status_ = error(code, "grammar, line {}: {}", line, what);
    }
    at_ = s_.size();
    return make_never();
  }
  static bool name_char(char c, bool dash) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (dash && c == '-');
  }
  std::string name(bool dash) {
    size_t from = at_;
    while (more() && name_char(peek(), dash)) ++at_;
    return std::string(s_.substr(from, at_ - from));
  }
  RuleId rule(const std::string& name) {
    auto it = ids_.find(name);
    if (it == ids_.end()) {
      it = ids_.emplace(name, grammar_.add(name)).first;
      budget_->spend_states(1);
    }
    return it->second;
  }
  bool number(uint32_t* out) {
    uint64_t v = 0;
    size_t from = at_;
    while (more() && peek() >= '0' && peek() <= '9')
      v = std::min<uint64_t>(v * 10 + static_cast<uint64_t>(s_[at_++] - '0'), 1u << 30);
    *out = static_cast<uint32_t>(v);
    return at_ > from;
  }
  bool hex(int n, uint32_t* c) {
    *c = 0;
    for (int i = 0; i < n; ++i) {
      char d = peek();
      int v = d >= '0' && d <= '9' ? d - '0' : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10 : -1;
      if (v < 0 || !more()) return false;
      *c = *c * 16 + static_cast<uint32_t>(v);
      ++at_;
    }
    return true;
  }
  // After a backslash; the character it stands for.
  bool escape(uint32_t* c) {
    if (!more()) return false;
    char e = s_[at_++];
    switch (e) {
      case 'n':
        *c = '\n';
        return true;
      case 't':
        *c = '\t';
        return true;
      case 'r':
        *c = '\r';
        return true;
      case 'f':
        *c = '\f';
        return true;
      case 'v':
        *c = '\v';
        return true;
      case '0':
        *c = 0;
        return true;
      case 'x':
        return hex(2, c);
      case 'u':
        return hex(4, c);
      case 'U':
        return hex(8, c) && *c <= 0x10FFFF;
      default:
        *c = static_cast<uint8_t>(e);
        return static_cast<uint8_t>(e) < 0x80;
    }
  }
  // A quoted literal; the opening quote is taken.
  std::string quoted() {
    std::string out;
    while (more() && peek() != '"') {
      if (peek() == '\n') break;
      if (peek() != '\\') {
        out += s_[at_++];
        continue;
      }
      ++at_;
      uint32_t c = 0;
      if (!escape(&c)) return fail("unknown escape"), out;
      append_utf8(c, &out);
    }
    if (!take("\"")) fail("a literal does not end");
    return out;
  }
  ExprPtr bounded(ExprPtr e, uint32_t min, uint32_t max) {
    int64_t largest = max == kUnbounded ? min : max;
    if (max < min) return fail("bounds out of order");
    if (largest > budget_->limits().repeat)
      return fail(fmt::format("repetition above {}", budget_->limits().repeat), Code::kResourceExhausted);
    return make_repeat(std::move(e), min, max);
  }
  Result<Grammar> finish(const char* start) {
    if (status_.ok() && !budget_->status().ok()) status_ = budget_->status();
    if (!status_.ok()) return status_;
    for (const Rule& r : grammar_.rules) {
      if (r.body == nullptr)
        return error(Code::kInvalidArgument, "grammar: rule '{}' is used but not defined", r.name);
    }
    auto it = ids_.find(start);
    if (it == ids_.end())
      return error(Code::kInvalidArgument, "grammar: there is no rule '{}' to start from", start);
    grammar_.root = it->second;
    return std::move(grammar_);
  }

  std::string_view s_;
  Budget* budget_;
  size_t at_ = 0;
  Status status_;
  Grammar grammar_;
  std::map<std::string, RuleId> ids_;
};

}  // namespace deepinfer::grammar
