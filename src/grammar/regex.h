// ECMA-262 regular expressions (with the u flag's meaning of characters) to expressions. Groups,
// alternatives, greedy and lazy quantifiers, classes, \d \w \s, \p{general category}, code point escapes,
// anchors at the ends. Not: back-references, look-behind, word boundaries, look-ahead: kUnsupported with the
// place. Source: ECMA-262 22.2; JSON Schema 2020-12 validation 6.3.3. Threads: pure functions.
#pragma once

#include <string_view>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

struct RegexOptions {
  Spelling spelling = Spelling::kRaw;
  bool ignore_case = false;  // ASCII letters only
  bool dot_all = false;
  // A search finds the pattern anywhere (JSON Schema); otherwise the whole text must match (anchors are
  // allowed and change nothing).
  bool search = false;
};
Result<ExprPtr> parse_regex(std::string_view pattern, const RegexOptions& options, Budget* budget);

}  // namespace deepinfer::grammar
