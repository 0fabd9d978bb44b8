// What tools' schemas say of the types of arguments, for values whose tag in the model's output leaves that
// open. Reads shapes only: constraining the model is the grammar's business. Source: request edge
// specification 5.3, field report P20. Threads: pure functions.
#pragma once

#include <vector>

#include "text/conversation.h"

namespace deepinfer {

// A string only, no string, or either: from type, enum, const, anyOf, oneOf, allOf and local $ref, to a
// bounded depth. What cannot be told is kAny. `root` is where "#/..." references start.
ArgumentType argument_type(const Json& schema, const Json& root);

// Of each tool the top-level properties that are not kAny.
ArgumentTypes argument_types(const std::vector<ToolDefinition>& tools);

}  // namespace deepinfer
