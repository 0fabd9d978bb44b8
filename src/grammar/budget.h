// What compiling one grammar may cost: time, states, memory, size of the source; and a way to stop it from
// another thread. A compile charges its work here and looks at alive() in every loop, so a hostile source
// ends with a message instead of a stall. Source: serving specification 12.4. Threads: one Budget per
// compile; the cancel flag may be set from anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace deepinfer::grammar {

struct CompileLimits {
  int64_t source_bytes = 256 << 10;    // text of a schema or grammar
  int json_depth = 128;                // nesting of the schema document
  int schema_depth = 64;               // nested decisions while one schema is expanded
  int64_t states = 400'000;            // automaton states, construction steps included
  int64_t branches = 20'000;           // alternatives of anyOf, oneOf, negations, all expansions together
  int64_t memory_bytes = 256ll << 20;  // what the compile may hold, by its own accounting
  int64_t time_ms = 5'000;             // wall time
  int64_t repeat = 10'000;             // largest finite repetition bound; larger ones are refused
};

class Budget {
 public:
  explicit Budget(const CompileLimits& limits, const std::atomic<bool>* cancelled = nullptr)
      : limits_(limits),
        cancelled_(cancelled),
        deadline_(std::chrono::steady_clock::now() + std::chrono::milliseconds(limits.time_ms)) {}

  const CompileLimits& limits() const { return limits_; }
  // False once a limit is reached; the reason is status(). Charges one step; the clock is read every 256.
  bool alive() {
    if (!status_.ok()) return false;
    if ((++ticks_ & 255) == 0) look();
    return status_.ok();
  }
  bool spend_states(int64_t n) {
    states_ += n;
    if (states_ > limits_.states)
      fail(error(Code::kResourceExhausted, "more than {} automaton states", limits_.states));
    return alive();
  }
  bool spend_bytes(int64_t n) {
    bytes_ += n;
    if (bytes_ > limits_.memory_bytes)
      fail(error(Code::kResourceExhausted, "more than {} bytes while compiling", limits_.memory_bytes));
    return alive();
  }
  bool spend_branches(int64_t n) {
    branches_ += n;
    if (branches_ > limits_.branches)
      fail(error(Code::kResourceExhausted, "more than {} alternatives after expansion", limits_.branches));
    return alive();
  }
  // The first failure stays: later ones follow from it.
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Names the part of the source that was being worked on when a limit was reached; the first call counts, so
  // the innermost part calls first.
  void locate(const std::string& place) {
    const Code code = status_.code();
    if (located_ || (code != Code::kResourceExhausted && code != Code::kDeadlineExceeded)) return;
    located_ = true;
    if (!status_.message().starts_with('#')) status_ = status_.with_context(place);
  }
  const Status& status() const { return status_; }
  int64_t states() const { return states_; }

 private:
  void look() {
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed))
      fail(Status(Code::kCancelled, "compile cancelled"));
    if (std::chrono::steady_clock::now() > deadline_)
      fail(error(Code::kDeadlineExceeded, "compiling took longer than {} ms", limits_.time_ms));
  }

  CompileLimits limits_;
  const std::atomic<bool>* cancelled_;
  std::chrono::steady_clock::time_point deadline_;
  Status status_;
  int64_t states_ = 0, bytes_ = 0, branches_ = 0;
  uint32_t ticks_ = 0;
  bool located_ = false;
};

}  // namespace deepinfer::grammar
