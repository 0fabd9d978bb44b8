// The event reader under the parsers of checkpoint JSON: it sees every key, so repeated names are found,
// keeps the depth bounded and keeps the first error in words. Reading by events means a hostile header never
// becomes a tree in memory. Knows no format. Threads: one object per parse.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// Formats override what they allow; everything else is refused with its position in the document.
class JsonEvents {
 public:
  using json = nlohmann::json;
  virtual ~JsonEvents() = default;

  virtual bool on_key(std::string& key) = 0;
  virtual bool on_string(std::string& value) = 0;
  virtual bool on_unsigned(uint64_t value) = 0;
  virtual bool on_other(const char* kind) = 0;  // null, boolean, negative or broken number
  virtual bool on_start(bool object) = 0;
  virtual bool on_end(bool object) = 0;

  // Runs over the text. Errors: kInvalidData with `where`.
  Status parse(std::span<const uint8_t> text, const std::string& where, int max_depth) {
    max_depth_ = max_depth;
    const char* begin = reinterpret_cast<const char*>(text.data());
    const bool ok = json::sax_parse(begin, begin + text.size(), this);
    if (ok && error_.empty()) return Status();
    if (error_.empty()) error_ = "not valid JSON";
    return error(Code::kInvalidData, "{}: {}", where, error_);
  }

  // ---- the interface the JSON library calls
  bool null() { return on_other("null"); }
  bool boolean(bool) { return on_other("a boolean"); }
  bool number_integer(json::number_integer_t) { return on_other("a negative number"); }
  bool number_unsigned(json::number_unsigned_t v) { return on_unsigned(v); }
  bool number_float(json::number_float_t, const std::string&) {
    return on_other("a number that is not a whole one");
  }
  bool string(std::string& v) { return on_string(v); }
  bool binary(json::binary_t&) { return on_other("binary data"); }
  bool key(std::string& k) { return on_key(k); }
  bool start_object(size_t) { return enter() && on_start(true); }
  bool start_array(size_t) { return enter() && on_start(false); }
  bool end_object() { return --depth_, on_end(true); }
  bool end_array() { return --depth_, on_end(false); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return fail("not valid JSON near byte " + std::to_string(position));
  }

 protected:
  int depth() const { return depth_; }  // of the container that is open now; 1 inside the root
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= max_depth_) return true;
    return fail("JSON nested deeper than " + std::to_string(max_depth_) + " levels");
  }
  int depth_ = 0;
  int max_depth_ = 0;
  std::string error_;
};

}  // namespace deepinfer
