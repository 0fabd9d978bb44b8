// A JSON document as a schema needs it: members in order, numbers by their digits (so that bounds are exact),
// and the place of every value for messages. Source: RFC 8259, RFC 6901. Threads: plain data.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer::grammar {

struct JsonMember;

struct JsonValue {
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };
  Type type = Type::kNull;
  bool boolean = false;
  std::string text;  // kString: the value in UTF-8; kNumber: as spelt
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;  // names are unique

  bool is(Type t) const { return type == t; }
  const JsonValue* find(std::string_view name) const;
};

struct JsonMember {
  std::string first;  // the name
  JsonValue second;
};

// kInvalidArgument with the byte offset; nesting deeper than max_depth, a repeated member and ill-formed
// UTF-8 are errors.
Result<JsonValue> parse_json_value(std::string_view text, int max_depth);
// Equal as JSON Schema compares: numbers by value, objects without order.
bool equal(const JsonValue& a, const JsonValue& b);
// Appends the pointer of `wanted` inside `root` (nothing for the root itself), in the spelling of RFC 6901;
// false if it is no part of it. Linear time.
bool find_pointer(const JsonValue& root, const JsonValue* wanted, std::string* path);

// An exact decimal: (-1)^negative * digits * 10^exponent, without leading or trailing zeros; zero has no
// digits.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;

  // Digits before and after the point, as written without an exponent; "" for none.
  std::string integer_part() const;
  std::string fraction_part() const;
  bool is_integer() const { return digits.empty() || exponent >= 0; }
  bool is_zero() const { return digits.empty(); }
  int64_t integer_digits() const { return static_cast<int64_t>(digits.size()) + exponent; }
};
// REQUIRES text spelt as a JSON number. kResourceExhausted for exponents beyond +-400.
Result<Decimal> parse_decimal(std::string_view text);
int compare(const Decimal& a, const Decimal& b);
// Without an exponent: 0.001, 1200.
std::string spell(const Decimal& d);

}  // namespace deepinfer::grammar
