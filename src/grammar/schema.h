// JSON Schema (2020-12, the subset of docs/structured-output.md) to grammar rules. Every text the rules allow
// is a valid instance, and every valid instance has a text they allow; where a keyword makes that impossible
// the schema is refused with the keyword's JSON pointer. Several documents may feed one grammar (tool calls).
// Source: JSON Schema 2020-12 core and validation; serving specification 12. Threads: one object per compile.
#pragma once

#include <string>
#include <vector>

#include "grammar/budget.h"
#include "grammar/expr.h"
#include "grammar/json_value.h"

namespace deepinfer::grammar {

struct SchemaOptions {
  bool any_order = false;  // members in any order instead of the schema's; at most kMaxAnyOrder declared ones
  uint32_t max_space = 32;   // characters of white space in one place; 0: none
  bool best_effort = false;  // unsupported keywords are left out, and listed, instead of refused
};

class SchemaCompiler {
 public:
  // `grammar`, `budget` and `document` outlive the compiler.
  SchemaCompiler(const JsonValue& document, const SchemaOptions& options, Grammar* grammar, Budget* budget);
  ~SchemaCompiler();

  // The rule of values that satisfy the schema at `node`, a part of the document.
  Result<RuleId> value_rule(const JsonValue& node);
  // For arguments written as raw text: the text of strings that satisfy the schema (not quoted, not escaped),
  // kNever if strings do not; and a rule for its values that are not strings (0 rules added: has_other
  // false).
  struct Split {
    ExprPtr raw_string;
    bool has_other = false;
    RuleId other = 0;
  };
  Result<Split> split_rule(const JsonValue& node);
  // Whether a value satisfies the schema: this room's own validator, for enum values and property names.
  Result<bool> validates(const JsonValue& node, const JsonValue& value);

  // With best_effort: pointers of the keywords that were left out.
  const std::vector<std::string>& left_out() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The grammar of one schema document.
Result<Grammar> schema_grammar(const JsonValue& document, const SchemaOptions& options, Budget* budget,
                               std::vector<std::string>* left_out = nullptr);
// White space of at most n characters.
ExprPtr bounded_space(Grammar* grammar, uint32_t n, RuleId* shared, bool* have);

}  // namespace deepinfer::grammar
