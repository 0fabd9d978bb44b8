// What the engine asks of structured output: which tokens may come next, going forward, going back. The
// engine owns this interface; grammars implement it. Source: serving specification 12. Threads: one object
// belongs to one choice of one request and is used by one thread at a time; clone() of a shared prototype may
// be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace deepinfer {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;

  // Writes one bit per id (bit i % 32 of word i / 32): 1 = allowed next. Stop ids are allowed exactly when
  // the output may end here. Returns false, leaving `bits` alone, when everything is allowed.
  virtual bool mask(std::span<uint32_t> bits) = 0;
  // Takes the token as produced. False: it was not allowed (the state is unchanged).
  virtual bool accept(int32_t id) = 0;
  // Takes back the last n accepted tokens. REQUIRES n of them accepted.
  virtual void rollback(int n) = 0;
  // Ids that must come next, if the continuation is unique; may be empty although it is.
  virtual std::vector<int32_t> forced(int most) = 0;
  // Nothing but a stop id may come any more.
  virtual bool terminated() const = 0;
};

}  // namespace deepinfer
