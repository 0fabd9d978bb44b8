// The formats of JSON Schema that are regular, each as an expression over characters. Narrower than the RFCs
// where those allow what nobody writes (comments in mail addresses, bare IPv6 zones). Source: JSON Schema
// 2020-12 validation 7.3; RFC 3339, 3986, 4122, 4291, 5321, 1123, 6901. Threads: pure functions.
#pragma once

#include <string_view>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

// nullptr for a format that is not in the list.
Result<ExprPtr> format_expr(std::string_view name, Spelling spelling, Budget* budget);
bool known_format(std::string_view name);

}  // namespace deepinfer::grammar
