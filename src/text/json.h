// JSON as the request edge needs it: member order kept from request to prompt, a nesting limit, lone
// surrogates replaced, and two ways of writing: compact (responses) and as Python's json.dumps does
// (prompts). Source: request edge specification 2.1, 3.1, 3.2. Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

using Json = nlohmann::ordered_json;

// Levels of arrays and objects a document may have.
constexpr int kMaxJsonDepth = 127;

// Parses one document. Lone surrogate escapes and ill-formed UTF-8 become U+FFFD. Of a repeated member the
// last value counts, at the place of the first. kInvalidArgument with line and column otherwise. Integers
// beyond 64 bits become doubles.
Result<Json> parse_json(std::string_view text);

enum class JsonStyle {
  kCompact,  // no spaces; U+0085, U+2028, U+2029 escaped as well, because some clients split lines at them
  kPython,   // ", " and ": ", non-ASCII kept
};
void append_json(const Json& value, JsonStyle style, std::string* out);
std::string to_python_json(const Json& value);

// The inside of a JSON string, without quotes, as `style` escapes it. REQUIRES valid UTF-8.
void append_json_escaped(std::string_view text, JsonStyle style, std::string* out);
// A double as Python's repr: shortest digits that read back, always with ".0" or an exponent.
void append_python_double(double value, std::string* out);

}  // namespace deepinfer
