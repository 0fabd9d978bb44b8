// Strict JSON for configurations: text from anywhere to a document, or an error with line and column. Knows
// no fields. Internal to the room. The limits are ours: a config.json has a few kilobytes and three levels.
// Source: RFC 8259.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

// Errors, all kInvalidData: not JSON, numbers beyond a double, a name given twice in one object, more than 32
// levels, more than 4 MiB, a top level that is not an object. Linear in the text; never recurses.
Result<nlohmann::json> parse_config_json(std::string_view text);

// "the string \"abc\"", "the number 1.5", "an object": what was found, for messages; long values are cut.
std::string describe_json(const nlohmann::json& value);

// Printable ASCII of untrusted text, cut to what a message may repeat.
std::string shown_text(std::string_view text);

}  // namespace deepinfer
