// From what a request says its output must match to what the engine asks at every token: grammars over the
// model's vocabulary, compiled once however many requests name them. Source: serving specification 12.1
// to 12.4. Threads: the factory may be used from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

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

  using Made = Result<std::shared_ptr<const TokenConstraint>>;
  // The rules of ConstraintFactory (edge/serve/generation.h). Errors: kInvalidArgument: the request's grammar
  // or schema is wrong, or over a limit. kUnsupported: a keyword, named by its JSON pointer. kUnavailable:
  // too many wait to be compiled. kResourceExhausted: this tenant's compile time is used up.
  std::shared_ptr<void> request(const ConstraintSpec& spec, const std::string& tenant,
                                std::function<void(Made)> done);
  // The same, waiting here: for tests.
  Made make(const ConstraintSpec& spec);
  // Ends compiles; whoever waits is told.
  void stop() { service_->stop(); }
  // Requests whose tools that promise nothing could not be held to their schemas.
  int64_t relaxed() const { return relaxed_; }
  grammar::CompileService::Counters counters() const { return service_->counters(); }

 private:
  GrammarFactory() = default;
  ConstraintOptions options_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::unique_ptr<grammar::CompileService> service_;
  std::atomic<int64_t> relaxed_{0};
};

// The source a specification stands for. kInvalidArgument names what is wrong with it. For kTools the value
// is
// {"tools": [{"name", "parameters", "strict"}], "required", "opener_in_prompt", "parallel", "v4", "answer"}.
// Where a call is required, tools that are not strict are held to their schemas as far as these can be kept.
Result<grammar::GrammarSource> grammar_source(const ConstraintSpec& spec, const ConstraintOptions& options);

// A matcher as the engine's constraint.
std::unique_ptr<TokenConstraint> make_constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar,
                                                 const grammar::MatcherOptions& options);

}  // namespace deepinfer
