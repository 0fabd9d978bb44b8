// What the engine sees of structured output: which tokens may come next, and what was chosen. A matcher
// belongs to one request; the compiled grammar behind it is shared by all. Nothing here waits, compiles or
// throws: a grammar is compiled before (compile.h, compile_service.h). Source: serving
// specification 12.3, 12.5.
//
// One step with drafts d1..dn: fill_mask(row 0); for each draft that the mask allows: accept(draft),
// fill_mask(row k); then rollback(accepted here - accepted by the verifier), and accept the verifier's own
// token if it was not among the drafts. The mask of a row depends on nothing but the tokens before it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/budget.h"
#include "grammar/expr.h"
#include "grammar/vocabulary.h"

namespace deepinfer::grammar {

class ItemSets;

// Threads: may be shared and used by any number of matchers at once; the pool of idle item sets is locked
// only when a matcher begins and ends.
class CompiledGrammar {
 public:
  // kInvalidArgument if nothing matches; kResourceExhausted, kDeadlineExceeded, kCancelled from the budget.
  static Result<std::shared_ptr<const CompiledGrammar>> create(const Grammar& grammar,
                                                               std::shared_ptr<const Vocabulary> vocabulary,
                                                               Budget* budget);
  ~CompiledGrammar();
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  // Of the tables; item sets in use are charged to their requests, idle ones are at most 8 MiB more.
  size_t memory_bytes() const { return automaton_.memory_bytes() + sizeof(*this); }

 private:
  friend class Matcher;
  CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);
  std::unique_ptr<ItemSets> take() const;
  void give_back(std::unique_ptr<ItemSets> machine) const;

  Automaton automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<ItemSets>> idle_;
};

struct MatcherOptions {
  // The control token that ends reasoning (</think>). With one, any text may come first and the grammar
  // begins after it; -1: the grammar begins at once.
  int32_t reasoning_end = -1;
  // Places kept for rollback. REQUIRES more than the longest draft.
  int32_t history = 128;
  // Item sets above this are cleaned up between tokens.
  size_t machine_bytes = 48u << 20;
};

// Threads: one thread at a time. Cost: a mask is a few microseconds where it was seen before or lies in a
// string, some tens for new places in a document; accept is well under a microsecond a byte.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar, const MatcherOptions& options = {});
  ~Matcher();
  Matcher(Matcher&&) noexcept;

  // mask: vocabulary().mask_words() words, bit id % 32 of word id / 32 = 1 if token id may come next.
  // Ordinary tokens whose bytes the grammar can read, control tokens it names, stop tokens where it may end.
  // False if no bit is set: the vocabulary cannot spell what must follow, or the grammar is too ambiguous
  // here (the request ends with an error).
  bool fill_mask(std::span<uint32_t> mask);
  // Takes a token. False, and nothing changes, if the mask does not allow it.
  bool accept(int32_t token);
  // Undoes the last n accepted tokens, a stop token included. REQUIRES n <= accepted() and n <= history.
  void rollback(int32_t n);
  int64_t accepted() const { return accepted_; }

  // A stop token was accepted.
  bool terminated() const;
  // A stop token would be accepted now.
  bool can_stop() const;
  // Still in reasoning: every ordinary token and the end of reasoning are allowed.
  bool in_reasoning() const;
  // Bytes that must come next whatever is chosen, at most `limit`; empty where there is a choice.
  std::string forced_bytes(size_t limit);
  // Tokens that spell forced bytes, the longest first at each place, and control tokens that are the only
  // choice: drafts that cost nothing. Every one of them is allowed in its turn; the sampler decides as for
  // any draft. The matcher is left as it was.
  void forced_tokens(size_t limit, std::vector<int32_t>* out);
  // A second matcher in the same state, with item sets of its own (n > 1 answers, speculation on another
  // thread).
  Matcher clone() const;

  const Vocabulary& vocabulary() const { return grammar_->vocabulary(); }
  // For the request's memory account.
  size_t memory_bytes() const;

 private:
  enum class Phase : uint8_t { kReasoning, kGrammar, kDone };
  struct Place {
    uint32_t set = 0;
    Phase phase = Phase::kGrammar;
  };
  bool next(Place from, int32_t token, Place* to);
  void tidy();

  std::shared_ptr<const CompiledGrammar> grammar_;
  MatcherOptions options_;
  std::unique_ptr<ItemSets> machine_;
  std::vector<Place> places_;  // the last is now; at most 2 * history + 1
  int64_t accepted_ = 0;
  size_t tidy_above_ = 0;  // grows if what is alive is large, so that cleaning up stays rare
};

}  // namespace deepinfer::grammar
