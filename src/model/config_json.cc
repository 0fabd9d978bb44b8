// Errors carry what a person needs to find the place; hostile text is never repeated at length.
#include "model/config_json.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace deepinfer {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = size_t{4} << 20;
constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxShown = 40;  // characters of a hostile value that a message repeats

// Builds the document event by event, so that depth and repeated names are checked before anything is stored.
class DocumentBuilder : public nlohmann::json_sax<json> {
 public:
  explicit DocumentBuilder(std::string_view text) : text_(text) {}

  json document;
  std::string problem;

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      return fail(fmt::format("the name \"{}\" is given twice in one object", shown_text(name)));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& why) override {
    std::string_view read = text_.substr(0, std::min(position, text_.size()));
    auto line = std::count(read.begin(), read.end(), '\n') + 1;
    size_t start = read.rfind('\n');
    size_t column = start == std::string_view::npos ? read.size() : read.size() - start - 1;
    // 406: a number that no double holds, such as 1e999.
    const char* what = why.id == 406 ? "a number is out of range" : "not valid JSON";
    return fail(fmt::format("{} at line {}, column {}, near '{}'", what, line, column, shown_text(token)));
  }

 private:
  bool fail(std::string text) {
    problem = std::move(text);
    return false;
  }
  json* place(json value) {
    if (open_.empty()) {
      document = std::move(value);
      return &document;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool put(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    if (open_.size() >= kMaxDepth) return fail(fmt::format("nested more than {} levels deep", kMaxDepth));
    // Stable while its children grow: only the innermost open container is ever appended to.
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

std::string shown_text(std::string_view text) {
  std::string out;
  for (char ch : text.substr(0, kMaxShown)) out += (ch >= 0x20 && ch < 0x7f) ? ch : '?';
  if (text.size() > kMaxShown) out += "...";
  return out;
}

Result<json> parse_config_json(std::string_view text) {
  if (text.size() > kMaxText) {
    return error(Code::kInvalidData, "{} bytes long; a configuration has at most {}", text.size(), kMaxText);
  }
  DocumentBuilder builder(text);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return error(Code::kInvalidData, "{}", builder.problem);
  }
  if (!builder.document.is_object()) {
    return error(Code::kInvalidData, "a configuration is a JSON object, found {}",
                 describe_json(builder.document));
  }
  return std::move(builder.document);
}

std::string describe_json(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::string:
      return "the string \"" + shown_text(value.get_ref<const std::string&>()) + "\"";
    case json::value_t::number_integer:
      return fmt::format("the number {}", value.get<int64_t>());
    case json::value_t::number_unsigned:
      return fmt::format("the number {}", value.get<uint64_t>());
    case json::value_t::number_float:
      return fmt::format("the number {}", value.get<double>());
    case json::value_t::array:
      return fmt::format("a list of {}", value.size());
    case json::value_t::object:
      return "an object";
    default:
      return "a value of unknown kind";
  }
}

}  // namespace deepinfer
