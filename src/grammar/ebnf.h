// Two spellings of EBNF to grammar rules. GBNF-like: `root ::= "a" [b-z]* (x | y){2,3}`, start rule root.
// Lark-like: `start: "a" NAME ("," NAME)*`, terminals in capitals, /regular expressions/, ~n..m, %ignore,
// %import common.X. Both describe texts, not token streams of a lexer: where Lark would choose the longest
// terminal, every reading counts here. Errors name the line. Source: serving specification 12;
// docs/structured-output.md lists the syntax. Threads: pure functions.
#pragma once

#include <string_view>

#include "grammar/budget.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

Result<Grammar> parse_gbnf(std::string_view text, Budget* budget);
Result<Grammar> parse_lark(std::string_view text, Budget* budget);

}  // namespace deepinfer::grammar
