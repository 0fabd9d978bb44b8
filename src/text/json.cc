// Reading through nlohmann/json after a pass that it cannot do itself (lone surrogates, depth), and the two
// ways of writing.
#include "text/json.h"

#include <charconv>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"

namespace deepinfer {
namespace {

bool hex4(std::string_view s, size_t at, uint32_t* value) {
  if (at + 4 > s.size()) return false;
  auto [end, ec] = std::from_chars(s.data() + at, s.data() + at + 4, *value, 16);
  return ec == std::errc() && end == s.data() + at + 4;
}

// Copies the document with lone surrogate escapes and ill-formed bytes replaced, and measures its depth.
// Knows only where strings begin and end: the grammar is the parser's business.
class Scanner {
 public:
  explicit Scanner(std::string_view in) : in_(in) { out_.reserve(in.size()); }

  bool run() {
    while (at_ < in_.size()) {
      char c = in_[at_];
      if (inside_ && c == '\\') {
        escape();
      } else if (static_cast<unsigned char>(c) < 0x80) {
        if (c == '"') inside_ = !inside_;
        if (!inside_ && c == '-' && negative_zero()) {
          out_ += "-0.0";
          at_ += 2;
          continue;
        }
        if (!inside_ && (c == '[' || c == '{') && ++depth_ > kMaxJsonDepth) return false;
        if (!inside_ && (c == ']' || c == '}')) --depth_;
        out_ += c;
        ++at_;
      } else {
        Utf8Char u = decode_utf8(in_.substr(at_));
        if (u.code_point == Utf8Char::kBad) {
          append_utf8(0xfffd, &out_);
        } else {
          out_.append(in_.substr(at_, u.size));
        }
        at_ += u.size;
      }
    }
    return true;
  }
  const std::string& text() const { return out_; }

 private:
  void escape() {
    uint32_t unit = 0, low = 0;
    if (at_ + 1 >= in_.size() || in_[at_ + 1] != 'u' || !hex4(in_, at_ + 2, &unit)) {
      out_.append(in_.substr(at_, 2));
      at_ += 2;
      return;
    }
    bool pair = unit >= 0xd800 && unit < 0xdc00 && at_ + 7 < in_.size() && in_[at_ + 6] == '\\' &&
                in_[at_ + 7] == 'u' && hex4(in_, at_ + 8, &low) && low >= 0xdc00 && low < 0xe000;
    if (pair) {
      out_.append(in_.substr(at_, 12));
      at_ += 12;
    } else {
      bool lone = unit >= 0xd800 && unit < 0xe000;
      out_.append(lone ? std::string_view("\\ufffd") : in_.substr(at_, 6));
      at_ += 6;
    }
  }

  // The integer "-0" has a sign to keep, so it is a double.
  bool negative_zero() const {
    if (in_.substr(at_, 2) != "-0") return false;
    return at_ + 2 >= in_.size() ||
           std::string_view("0123456789.eE").find(in_[at_ + 2]) == std::string_view::npos;
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  int depth_ = 0;
  bool inside_ = false;
};

// Builds the document member by member. nlohmann's own builder looks for each key among all earlier ones of
// its object: quadratic for an object of a hundred thousand members. Large objects get an index here.
class Builder {
 public:
  explicit Builder(Json* root) : root_(root) {}

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(int64_t v) { return put(v); }
  bool number_unsigned(uint64_t v) { return put(v); }
  bool number_float(double v, const std::string&) { return put(v); }
  bool string(std::string& v) { return put(std::move(v)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    Level& level = open_.back();
    auto& members = level.node->get_ref<Json::object_t&>();
    size_t at = level.find(members, name);
    if (at == members.size()) {
      if (members.size() >= kLinear) level.places.emplace(name, at);
      members.emplace_back(std::move(name), Json());
    }
    level.slot = &members.data()[at].second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    fault_at_ = position;
    return false;
  }
  size_t fault_at() const { return fault_at_; }

 private:
  static constexpr size_t kLinear = 16;  // members up to here are searched in order

  struct Level {
    Json* node = nullptr;  // stays put: its container grows only after this level is closed
    Json* slot = nullptr;  // objects: where the value of the last key goes
    std::unordered_map<std::string, size_t> places;  // of members from kLinear on

    size_t find(const Json::object_t& members, const std::string& name) const {
      size_t front = std::min(members.size(), kLinear);
      for (size_t i = 0; i < front; ++i) {
        if (members.data()[i].first == name) return i;
      }
      auto it = places.find(name);
      return it == places.end() ? members.size() : it->second;
    }
  };

  Json* place(Json value) {
    Json* at = root_;
    if (!open_.empty()) {
      Level& level = open_.back();
      if (level.node->is_array()) {
        level.node->push_back(nullptr);
        at = &level.node->back();
      } else {
        at = level.slot;
      }
    }
    *at = std::move(value);
    return at;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    Json* at = place(std::move(value));
    open_.emplace_back().node = at;
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json* root_;
  std::vector<Level> open_;
  size_t fault_at_ = 0;
};

void append_value(const Json& v, JsonStyle style, std::string* out) {
  const char* comma = style == JsonStyle::kPython ? ", " : ",";
  const char* colon = style == JsonStyle::kPython ? ": " : ":";
  auto quoted = [&](const std::string& s) {
    *out += '"';
    append_json_escaped(s, style, out);
    *out += '"';
  };
  switch (v.type()) {
    case Json::value_t::object: {
      *out += '{';
      bool first = true;
      for (auto it = v.begin(); it != v.end(); ++it) {
        if (!first) *out += comma;
        first = false;
        quoted(it.key());
        *out += colon;
        append_value(it.value(), style, out);
      }
      *out += '}';
      return;
    }
    case Json::value_t::array: {
      *out += '[';
      bool first = true;
      for (const Json& item : v) {
        if (!first) *out += comma;
        first = false;
        append_value(item, style, out);
      }
      *out += ']';
      return;
    }
    case Json::value_t::string:
      return quoted(v.get_ref<const std::string&>());
    case Json::value_t::boolean:
      *out += v.get<bool>() ? "true" : "false";
      return;
    case Json::value_t::number_integer:
      *out += std::to_string(v.get<int64_t>());
      return;
    case Json::value_t::number_unsigned:
      *out += std::to_string(v.get<uint64_t>());
      return;
    case Json::value_t::number_float:
      return append_python_double(v.get<double>(), out);
    default:
      *out += "null";
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Scanner scanner(text);
  if (!scanner.run()) {
    return error(Code::kInvalidArgument, "invalid JSON request: nested deeper than {} levels", kMaxJsonDepth);
  }
  Json document;
  Builder sink(&document);
  if (!Json::sax_parse(scanner.text(), &sink)) {
    size_t at = std::min(sink.fault_at(), scanner.text().size());
    size_t line = 1, column = 0;
    for (size_t i = 0; i < at; ++i) {
      column = scanner.text()[i] == '\n' ? 0 : column + 1;
      line += scanner.text()[i] == '\n' ? 1 : 0;
    }
    bool early = at >= scanner.text().size();
    return error(Code::kInvalidArgument, "invalid JSON request: {} at line {} column {}",
                 early ? "the document ends early or a number is out of range" : "unexpected character", line,
                 column);
  }
  return document;
}

void append_json_escaped(std::string_view text, JsonStyle style, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  size_t plain = 0;
  auto flush = [&](size_t upto) { out->append(text.substr(plain, upto - plain)); };
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    const char* fixed = nullptr;
    size_t used = 1;
    switch (c) {
      case '"':
        fixed = "\\\"";
        break;
      case '\\':
        fixed = "\\\\";
        break;
      case '\b':
        fixed = "\\b";
        break;
      case '\t':
        fixed = "\\t";
        break;
      case '\n':
        fixed = "\\n";
        break;
      case '\f':
        fixed = "\\f";
        break;
      case '\r':
        fixed = "\\r";
        break;
      case 0xc2:
        if (style == JsonStyle::kCompact && text.substr(i, 2) == "\xc2\x85") fixed = "\\u0085", used = 2;
        break;
      case 0xe2:
        if (style == JsonStyle::kCompact && text.substr(i, 3) == "\xe2\x80\xa8") fixed = "\\u2028", used = 3;
        if (style == JsonStyle::kCompact && text.substr(i, 3) == "\xe2\x80\xa9") fixed = "\\u2029", used = 3;
        break;
      default:
        break;
    }
    if (fixed == nullptr && c >= 0x20) continue;
    flush(i);
    if (fixed != nullptr) {
      *out += fixed;
    } else {
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
    }
    i += used - 1;
    plain = i + 1;
  }
  flush(text.size());
}

void append_python_double(double value, std::string* out) {
  if (!std::isfinite(value)) {  // cannot come from JSON text; kept readable should a caller build one
    *out += "null";
    return;
  }
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view s(buffer, static_cast<size_t>(end - buffer));
  if (s[0] == '-') {
    *out += '-';
    s.remove_prefix(1);
  }
  size_t e = s.find('e');
  int exponent = std::atoi(std::string(s.substr(e + 1)).c_str());
  std::string digits(1, s[0]);
  if (e > 2) digits += s.substr(2, e - 2);
  auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    *out += digits[0];
    if (count > 1) *out += "." + digits.substr(1);
    *out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    *out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    *out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    *out += digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
            digits.substr(static_cast<size_t>(exponent + 1));
  }
}

void append_json(const Json& value, JsonStyle style, std::string* out) {
  append_value(value, style, out);
}

std::string to_python_json(const Json& value) {
  std::string out;
  append_json(value, JsonStyle::kPython, &out);
  return out;
}

}  // namespace deepinfer
