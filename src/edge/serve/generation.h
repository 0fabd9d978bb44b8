// What the server asks of whoever makes tokens: submit, events, cancel, state. The edge owns this interface
// and names no engine; apps/ implements it over one. Threads: every function may be called from any thread;
// events arrive on the loop given at submit.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "edge/http/exchange.h"
#include "text/output_parser.h"

namespace deepinfer {

// What the output must match, in the words of the request; apps/ turns it into a constraint of the engine.
struct ConstraintSpec {
  enum class Kind { kJsonObject, kJsonSchema, kRegex, kGrammar, kChoice, kStructuralTag, kTools };
  Kind kind = Kind::kJsonObject;
  Json value;                   // schema, pattern, grammar text, list of choices
  std::string field;            // of the request, for messages
  bool after_thinking = false;  // the output begins inside reasoning, which is free
};

// Makes the engine's own constraint object; the edge only carries it. Returns at once; `done` is called once,
// from any thread, perhaps before it returns, and must not block. Letting go of what is returned withdraws
// the request: done is not called any more, and nobody works on it if nobody else waits. `tenant`: on whose
// account.
using ConstraintDone = std::function<void(Result<std::shared_ptr<const void>>)>;
using ConstraintFactory = std::function<std::shared_ptr<void>(
    const ConstraintSpec&, const std::string& tenant, ConstraintDone done)>;

struct GenerationRequest {
  std::vector<int32_t> prompt;
  double temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;
  uint64_t seed = 0;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // ascending ids
  int64_t max_tokens = 256, min_tokens = 0;
  std::vector<int32_t> stop_ids, banned_ids;  // ascending
  int choices = 1;
  int top_logprobs = -1;
  bool prompt_logprobs = false;
  // What a ConstraintMaker made, for whoever made it; null: anything may come.
  std::shared_ptr<const void> constraint;
  uint32_t tenant = 0;
  double tenant_weight = 1;
  int priority = 0;
  int64_t timeout_ns = 0;  // from now; 0: none
  std::string cache_scope;
  bool use_cache = true;
  bool offers_tools = false;  // an agent's: its prefix is kept for a shorter time
  int64_t store_ttl_s = -1;  // how long the persistent store keeps its prefix; 0: not at all; -1: by its kind
  int64_t store_window_ttl_s = -1;  // the same of its windows alone; -1: as store_ttl_s
};

struct GenerationUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  int64_t preemptions = 0;
  int64_t store_tokens = 0;  // of the cached ones, brought in from the persistent store
};

// Of one choice, in this order: kStarted, any number of kTokens, kFinished; exactly one kFinished.
struct GenerationEvent {
  enum class Kind : uint8_t { kStarted, kTokens, kFinished };
  enum class End : uint8_t { kStop, kLength, kCancelled, kDeadline, kRefused, kError };
  Kind kind = Kind::kStarted;
  int choice = 0;
  End end = End::kStop;
  std::vector<TokenLogprob> tokens;
  std::vector<TokenLogprob> prompt_logprobs;
  Status status;
  GenerationUsage usage;
  int64_t queue_ns = 0, prefill_ns = 0, decode_ns = 0;  // kFinished; 0: did not happen
};

// How the engine's drafts fare; counters but for the flags and the last budget.
struct SpeculationView {
  bool on = true, drifting = false;
  int64_t draft_passes = 0, switched_off = 0, switched_on = 0, trials = 0, drift_alarms = 0,
          origin_alarms = 0;
  int64_t budgets = 0, budget_drafts = 0, last_budget = 0;
  struct Position {
    int64_t verified = 0, accepted = 0;
    double predicted = 0;  // sum of the predicted survivals of what was verified
  };
  std::vector<Position> position;  // by place in the block
};

// Gauges and counters of the engine as name and value, and what health needs of it.
struct EngineView {
  int64_t running = 0, waiting = 0, last_step_age_ns = -1;  // -1: no step yet
  int64_t busy_ns = 0;  // for how long there has been unfinished work; 0: none
  bool draining = false;
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0, block_tokens = 128;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, steps = 0, preemptions = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  SpeculationView speculation;
  std::vector<std::pair<std::string, int64_t>> counters, gauges;  // all of them, for metrics and console
  std::string
      store_trouble;  // why nothing can be kept in the persistent store; empty: it can, or there is none
};

class Generator {
 public:
  using Sink = std::function<void(GenerationEvent&&)>;
  virtual ~Generator() = default;
  // Never waits for the model. Errors as the engine's: kInvalidArgument, kUnsupported, kUnavailable,
  // kResourceExhausted.
  virtual Result<uint64_t> submit(GenerationRequest request, std::shared_ptr<Loop> loop, Sink sink) = 0;
  virtual void cancel(uint64_t id) = 0;
  virtual void cancel_choice(uint64_t id, int choice) = 0;
  virtual EngineView view() const = 0;
  virtual int64_t context_tokens() const = 0;
  // Forgets cached prefixes that nobody uses now. False: there is no cache. May wait for the engine's loop.
  virtual bool clear_cache() { return false; }
};

}  // namespace deepinfer
