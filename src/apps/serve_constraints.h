// From what a request says its output must match to what the engine asks at every token: grammars over the
// model's vocabulary, compiled once however many requests name them. Source: serving specification 12.1
// to 12.4. Threads: the maker may be called from any thread; it waits for the compile, so not from a loop.
#pragma once

#include <memory>

#include "edge/serve/generation.h"
#include "engine/constraint.h"
#include "grammar/compile_service.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct ConstraintOptions {
  int64_t vocab_size = 0;  // of the model; ids the tokenizer does not know are never allowed
  int32_t think_close_id = -1, dsml_id = -1;
  grammar::CompileServiceOptions service;
};

// Holds the vocabulary's trie, the compile service and its cache; shared by all constraints it makes.
class GrammarFactory {
 public:
  static Result<std::shared_ptr<GrammarFactory>> create(const Tokenizer& tokenizer,
                                                        const ConstraintOptions& options);

  // kInvalidArgument: the request's grammar or schema is wrong. kUnsupported: a keyword, named by its JSON
  // pointer. kResourceExhausted, kDeadlineExceeded: over a limit; kUnavailable: too many wait to be compiled.
  Result<std::shared_ptr<const TokenConstraint>> make(const ConstraintSpec& spec);
  grammar::CompileService::Counters counters() const { return service_->counters(); }

 private:
  GrammarFactory() = default;
  ConstraintOptions options_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::unique_ptr<grammar::CompileService> service_;
};

// The source a specification stands for. kInvalidArgument names what is wrong with it. For kTools the value
// is
// {"tools": [{"name", "parameters", "strict"}], "required", "opener_in_prompt", "parallel"}.
Result<grammar::GrammarSource> grammar_source(const ConstraintSpec& spec, const ConstraintOptions& options);

// A matcher as the engine's constraint.
std::unique_ptr<TokenConstraint> make_constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar,
                                                 const grammar::MatcherOptions& options);

}  // namespace deepinfer
