// The text of tool calls: the DSML block with names of declared tools and arguments that satisfy their
// schemas, for strict tools and for a tool choice that requires a call. Arguments follow the schema's order;
// string values are raw text up to the closing tag, others JSON. Control tokens stand as tokens, so that text
// that merely spells a tag closes nothing. Source: request edge specification 3.5.2. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "grammar/budget.h"
#include "grammar/expr.h"
#include "grammar/schema.h"

namespace deepinfer::grammar {

struct ToolSpec {
  std::string name;
  std::string parameters;  // JSON schema of the argument object; "" or "{}": any arguments
  // Not strict: any parameters with any values, in well-formed tags.
  bool strict = true;
  // The schema as far as it can be kept: keywords that cannot are left out, undeclared arguments may come
  // unless the schema closes the object. For tools whose schema is a hint and not a promise.
  bool best_effort = false;
};

struct ToolsOptions {
  int32_t dsml_token = -1;       // ｜DSML｜
  bool required = true;          // a call must come; otherwise text may come, and a call after it
  std::string answer_schema;     // not required: instead of text, a value of this JSON schema ("": text)
  bool opener_in_prompt = true;  // the prompt ends behind "<｜DSML｜ calls>\n" (required only)
  bool parallel = true;          // more than one call in the block
  bool v4 = false;               // the older spelling: tool_calls, invoke, parameter without a space
  SchemaOptions schema;
};

// kUnsupported or kInvalidArgument with the tool's name and the keyword's pointer. REQUIRES dsml_token >= 0.
Result<Grammar> tools_grammar(const std::vector<ToolSpec>& tools, const ToolsOptions& options,
                              Budget* budget);

}  // namespace deepinfer::grammar
