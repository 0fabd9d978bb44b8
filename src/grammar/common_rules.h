// Pieces every front end needs: JSON strings, text, numbers, white space. Threads: pure functions.
#pragma once

#include "grammar/expr.h"

namespace deepinfer::grammar {

// One character inside a JSON string, in every spelling JSON has: raw, short escape, \uXXXX, surrogate pair.
// A prefix code; lone surrogates are not characters.
ExprPtr free_json_char();
// Quotes and any number of such characters.
ExprPtr free_json_string();
// White space JSON allows between elements; one byte.
ExprPtr json_space();
// Any number: up to 64 digits before and after the point, up to 3 in the exponent, so that digits end.
ExprPtr free_json_number();
ExprPtr free_json_integer();
constexpr uint32_t kMaxDigits = 64;

// The rules every vocabulary computes in advance.
Grammar common_grammar();

}  // namespace deepinfer::grammar
