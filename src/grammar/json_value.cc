// A small strict JSON reader, comparison, pointers and exact decimals.
#include "grammar/json_value.h"

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "grammar/char_set.h"

namespace deepinfer::grammar {
namespace {

class Reader {
 public:
  Reader(std::string_view text, int max_depth) : s_(text), max_depth_(max_depth) {}

  Result<JsonValue> run() {
    JsonValue v;
    if (!valid_utf8(s_)) return Status(Code::kInvalidArgument, "the schema is not valid UTF-8");
    if (!value(&v, 0)) return status();
    space();
    if (at_ != s_.size()) {
      fail("text after the end of the document");
      return status();
    }
    return v;
  }

 private:
  Status status() const { return error(Code::kInvalidArgument, "JSON, byte {}: {}", where_, what_); }
  bool fail(const char* what) {
    if (what_.empty()) what_ = what, where_ = at_;
    return false;
  }
  void space() {
    while (at_ < s_.size() && (s_[at_] == ' ' || s_[at_] == '\t' || s_[at_] == '\n' || s_[at_] == '\r'))
      ++at_;
  }
  bool take(char c) {
    if (at_ >= s_.size() || s_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    if (s_.substr(at_, w.size()) != w) return fail("unknown word");
    at_ += w.size();
    return true;
  }

  bool value(JsonValue* v, int depth) {
    if (depth > max_depth_) return fail("nested too deep");
    space();
    if (at_ >= s_.size()) return fail("the document ends early");
    switch (s_[at_]) {
      case '{':
        return object(v, depth);
      case '[':
        return array(v, depth);
      case '"':
        v->type = JsonValue::Type::kString;
        return string(&v->text);
      case 't':
        v->type = JsonValue::Type::kBool;
        v->boolean = true;
        return word("true");
      case 'f':
        v->type = JsonValue::Type::kBool;
        return word("false");
      case 'n':
        return word("null");
      default:
        return number(v);
    }
  }

  bool object(JsonValue* v, int depth) {
    v->type = JsonValue::Type::kObject;
    ++at_;
    space();
    if (take('}')) return true;
    std::unordered_set<std::string> names;
    do {
      space();
      if (at_ >= s_.size() || s_[at_] != '"') return fail("a member needs a name");
      std::string name;
      if (!string(&name)) return false;
      if (!names.insert(name).second) return fail("a member appears twice");
      space();
      if (!take(':')) return fail("':' expected");
      v->members.push_back({std::move(name), JsonValue()});
      if (!value(&v->members.back().second, depth + 1)) return false;
      space();
    } while (take(','));
    return take('}') || fail("'}' or ',' expected");
  }

  bool array(JsonValue* v, int depth) {
    v->type = JsonValue::Type::kArray;
    ++at_;
    space();
    if (take(']')) return true;
    do {
      v->items.emplace_back();
      if (!value(&v->items.back(), depth + 1)) return false;
      space();
    } while (take(','));
    return take(']') || fail("']' or ',' expected");
  }

  bool digits(JsonValue* v) {
    size_t from = at_;
    while (at_ < s_.size() && std::isdigit(static_cast<unsigned char>(s_[at_])) != 0) v->text += s_[at_++];
    return at_ > from || fail("a digit expected");
  }
  bool number(JsonValue* v) {
    v->type = JsonValue::Type::kNumber;
    if (take('-')) v->text += '-';
    if (take('0')) {
      v->text += '0';
    } else if (!digits(v)) {
      return false;
    }
    if (take('.')) {
      v->text += '.';
      if (!digits(v)) return false;
    }
    if (at_ < s_.size() && (s_[at_] == 'e' || s_[at_] == 'E')) {
      v->text += s_[at_++];
      if (at_ < s_.size() && (s_[at_] == '+' || s_[at_] == '-')) v->text += s_[at_++];
      if (!digits(v)) return false;
    }
    return true;
  }

  bool hex4(uint32_t* c) {
    *c = 0;
    for (int i = 0; i < 4; ++i) {
      if (at_ >= s_.size() || std::isxdigit(static_cast<unsigned char>(s_[at_])) == 0)
        return fail("bad \\u escape");
      char d = s_[at_++];
      *c = *c * 16 + static_cast<uint32_t>(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
    }
    return true;
  }
  bool string(std::string* out) {
    ++at_;
    while (at_ < s_.size() && s_[at_] != '"') {
      char c = s_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
      ++at_;
      if (c != '\\') {
        *out += c;
        continue;
      }
      if (at_ >= s_.size()) break;
      char e = s_[at_++];
      static constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
      if (size_t k = from.find(e); k != std::string_view::npos) {
        *out += to[k];
      } else if (e == 'u') {
        uint32_t u = 0, low = 0;
        if (!hex4(&u)) return false;
        if (u >= 0xD800 && u <= 0xDFFF) {
          if (u > 0xDBFF || s_.substr(at_, 2) != "\\u") return fail("a lone surrogate");
          at_ += 2;
          if (!hex4(&low) || low < 0xDC00 || low > 0xDFFF) return fail("a lone surrogate");
          u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(u, out);
      } else {
        return fail("unknown escape");
      }
    }
    return take('"') || fail("a string does not end");
  }

  std::string_view s_;
  int max_depth_;
  size_t at_ = 0, where_ = 0;
  std::string what_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  for (const JsonMember& m : members) {
    if (m.first == name) return &m.second;
  }
  return nullptr;
}

Result<JsonValue> parse_json_value(std::string_view text, int max_depth) {
  return Reader(text, max_depth).run();
}

bool equal(const JsonValue& a, const JsonValue& b) {
  if (a.type != b.type) return false;
  switch (a.type) {
    case JsonValue::Type::kNull:
      return true;
    case JsonValue::Type::kBool:
      return a.boolean == b.boolean;
    case JsonValue::Type::kString:
      return a.text == b.text;
    case JsonValue::Type::kNumber: {
      Result<Decimal> x = parse_decimal(a.text), y = parse_decimal(b.text);
      return x.ok() && y.ok() ? compare(*x, *y) == 0 : a.text == b.text;
    }
    case JsonValue::Type::kArray:
      return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                        [](const JsonValue& x, const JsonValue& y) { return equal(x, y); });
    case JsonValue::Type::kObject:
      if (a.members.size() != b.members.size()) return false;
      return std::all_of(a.members.begin(), a.members.end(), [&](const auto& m) {
        const JsonValue* other = b.find(m.first);
        return other != nullptr && equal(m.second, *other);
      });
  }
  return false;
}

bool find_pointer(const JsonValue& v, const JsonValue* wanted, std::string* path) {
  if (&v == wanted) return true;
  size_t size = path->size();
  for (size_t i = 0; i < v.items.size(); ++i) {
    *path += fmt::format("/{}", i);
    if (find_pointer(v.items[i], wanted, path)) return true;
    path->resize(size);
  }
  for (const auto& [k, m] : v.members) {
    *path += '/';
    for (char c : k) *path += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    if (find_pointer(m, wanted, path)) return true;
    path->resize(size);
  }
  return false;
}

Result<Decimal> parse_decimal(std::string_view text) {
  Decimal d;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') d.negative = true, ++i;
  int64_t exponent = 0;
  bool point = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    d.digits += text[i];
    if (point) --exponent;
  }
  if (i < text.size()) {
    ++i;
    bool minus = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    int64_t e = 0;
    for (; i < text.size(); ++i) e = std::min<int64_t>(e * 10 + (text[i] - '0'), 1'000'000);
    exponent += minus ? -e : e;
  }
  size_t lead = std::min(d.digits.find_first_not_of('0'), d.digits.size());
  d.digits.erase(0, lead);
  while (!d.digits.empty() && d.digits.back() == '0') d.digits.pop_back(), ++exponent;
  if (d.digits.empty()) return Decimal{};
  d.exponent = exponent;
  if (d.exponent > 400 || d.exponent < -400 || d.digits.size() > 400)
    return error(Code::kResourceExhausted, "the number {} is out of the range this program computes with",
                 text.substr(0, 40));
  return d;
}

std::string Decimal::integer_part() const {
  int64_t n = integer_digits();
  if (n <= 0) return {};
  std::string out =
      digits.substr(0, static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(digits.size()))));
  out.append(static_cast<size_t>(n) - out.size(), '0');
  return out;
}

std::string Decimal::fraction_part() const {
  int64_t n = integer_digits();
  if (exponent >= 0) return {};
  if (n >= 0) return digits.substr(static_cast<size_t>(n));
  return std::string(static_cast<size_t>(-n), '0') + digits;
}

int compare(const Decimal& a, const Decimal& b) {
  auto magnitude = [](const Decimal& x, const Decimal& y) {
    if (x.is_zero() || y.is_zero()) return (x.is_zero() ? 0 : 1) - (y.is_zero() ? 0 : 1);
    if (x.integer_digits() != y.integer_digits()) return x.integer_digits() < y.integer_digits() ? -1 : 1;
    int c = x.digits.compare(y.digits);
    return c < 0 ? -1 : c > 0 ? 1 : 0;
  };
  bool na = a.negative && !a.is_zero(), nb = b.negative && !b.is_zero();
  if (na != nb) return na ? -1 : 1;
  return na ? magnitude(b, a) : magnitude(a, b);
}

std::string spell(const Decimal& d) {
  std::string i = d.integer_part(), f = d.fraction_part();
  return (d.negative ? "-" : "") + (i.empty() ? "0" : i) + (f.empty() ? "" : "." + f);
}

}  // namespace deepinfer::grammar
