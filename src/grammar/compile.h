// From what a request says to a compiled grammar: one function for every kind of source, and the identity
// under which equal grammars are compiled once. Source: serving specification 12.2. Threads: pure functions;
// run them off the hot path (compile_service.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "grammar/tools_grammar.h"

namespace deepinfer::grammar {

struct GrammarSource {
  enum class Kind { kJsonSchema, kJsonObject, kRegex, kChoice, kGbnf, kLark, kTools };
  Kind kind = Kind::kJsonSchema;
  std::string text;  // schema, pattern or grammar
  SchemaOptions schema;
  std::vector<std::string> choices;  // kChoice: exactly one of these texts
  // kTools
  std::vector<ToolSpec> tools;
  ToolsOptions tool_options;
};

// Everything that decides the language, hashed. Two sources with one identity compile to the same grammar.
Digest identity(const GrammarSource& source);
// The grammar as rules, before the automaton; for `deepinfer grammar --print`.
Result<Grammar> front_end(const GrammarSource& source, Budget* budget,
                          std::vector<std::string>* left_out = nullptr);
// kInvalidArgument: the source is wrong. kUnsupported: a keyword or construct, named by its JSON pointer or
// line. kResourceExhausted, kDeadlineExceeded: over a limit. kCancelled: `cancelled` was set.
Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSource& source,
                                                       std::shared_ptr<const Vocabulary> vocabulary,
                                                       const CompileLimits& limits = {},
                                                       const std::atomic<bool>* cancelled = nullptr,
                                                       std::vector<std::string>* left_out = nullptr);

}  // namespace deepinfer::grammar
