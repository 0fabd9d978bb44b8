// The serving engine seen from outside: submit requests of token ids, poll events, cancel, drain, read
// statistics. Many requests run at once and no token depends on its company: a request's tokens are the same
// alone, in any batch, chunked in any way, preempted, or begun from a cached prefix with a stored window.
// Knows no text, no protocol and no socket. Source: serving specification 1 to 3, 5, 11. Threads: every
// function may be called from any thread, except poll(): one poller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/constraint.h"
#include "engine/prefix_store.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace deepinfer {

enum class RequestId : uint64_t {};  // given by submit(), never reused, from 1

struct EngineRequest {
  std::vector<int32_t> prompt;  // at least one id inside the vocabulary
  std::vector<ImageSpan>
      images;  // embeddings that stand in for ids; their digests are part of the prefix key
  std::vector<std::string> image_digests;  // one per span

  SamplingParams sampling;
  int64_t max_tokens = 256;         // at least 1; prompt and max_tokens fit the context together
  int64_t min_tokens = 0;           // stop ids are not produced before so many tokens
  std::vector<int32_t> stop_ids;    // ascending; the stop token itself ends the request and is not reported
  std::vector<int32_t> banned_ids;  // ascending; never produced
  int choices = 1;                  // answers to the same prompt; choice i draws with choice_seed(seed, i)
  int top_logprobs = -1;            // -1: no log-probabilities; k >= 0: of the token and of the k best
  bool prompt_logprobs = false;     // of every prompt token but the first; computes the whole prompt exactly
  bool speculate = true;            // drafts may be used (they never change a token)
  // What the tokens must match; null: anything. One object per choice is cloned from it.
  std::shared_ptr<const TokenConstraint> constraint;

  uint32_t tenant = 0;       // fairness is between tenants
  double tenant_weight = 1;  // > 0
  int priority = 0;          // higher goes first
  int64_t deadline_ns = 0;   // on the engine's clock (Engine::now_ns); 0: none
  std::string cache_scope;   // prefixes are shared only inside one scope (tenant and salt)
  bool use_cache = true;     // false: neither reads nor publishes cached prefixes
  bool exact_hits = false;   // never start from an approximated window: bit for bit a cold run
  StoreWish store;           // of the persistent store, where there is one
};

// The seed of one choice of a request: choice 0 has the request's own.
uint64_t choice_seed(uint64_t seed, int choice);

struct TokenEvent {
  int32_t id = 0;
  double logprob = 0;  // of the model's distribution before temperature and filters; 0 unless asked for
  std::vector<std::pair<int32_t, double>> top;  // best first
};

enum class Finish : uint8_t {
  kStop,       // a stop id, or the constraint's end
  kLength,     // max_tokens
  kCancelled,  // cancel(), or a drain that ran out of patience
  kDeadline,   // the deadline passed, or could not have been met
  kRefused,    // can never run here: longer than the context or the whole pool, or the queue is full
  kError,      // the constraint left no token, or another fault of this request alone
};
const char* name(Finish finish);

struct RequestTimes {  // on the engine's clock; 0: did not happen
  int64_t submitted_ns = 0, admitted_ns = 0, first_token_ns = 0, finished_ns = 0;
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt, not computed at first admission
  int64_t store_tokens = 0;      // of those, brought in from the persistent store
  bool replayed_window = false;  // the hit had no stored window: equal to a cold run only approximately
  int64_t output_tokens = 0;     // of this choice, delivered
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // verified drafts and those that were right
  int32_t preemptions = 0;
};

// Events of one choice come in this order: kStarted, any number of kTokens, kFinished; exactly one kFinished
// whatever happens. `tokens` are final: an event never takes one back.
struct EngineEvent {
  enum class Kind : uint8_t { kStarted, kTokens, kFinished };
  Kind kind = Kind::kStarted;
  RequestId request{};
  int choice = 0;
  std::vector<TokenEvent> tokens;           // kTokens: at least one
  bool first = false;                       // kTokens: the choice had none before
  std::vector<TokenEvent> prompt_logprobs;  // kStarted, when asked for
  Finish finish = Finish::kStop;            // kFinished
  Status status;                            // kFinished: why, for kDeadline, kRefused and kError
  RequestUsage usage;                       // kStarted: the prompt's part; kFinished: all
  RequestTimes times;                       // kFinished

  bool news() const { return kind != Kind::kTokens || first; }
};

// How speculation fares. Counters only grow but for `on`, `drifting` and `last_budget`.
struct SpeculationStats {
  bool on = true, drifting = false;  // off: drafting does not pay now; drifting: confidences promise too much
  int64_t draft_passes = 0, switched_off = 0, switched_on = 0, trials = 0, drift_alarms = 0,
          origin_alarms = 0;
  struct Position {
    int64_t verified = 0, accepted = 0;
    double predicted = 0;  // sum of the survival predicted for what was verified
  };
  std::vector<Position> position;          // by place in the block
  int64_t budgets = 0, budget_drafts = 0;  // decisions how many drafts to verify, and the drafts granted
  int64_t last_budget = 0;                 // by the last decision
};

// Counters only grow; gauges are of now.
struct EngineStats {
  int64_t submitted = 0, finished = 0, cancelled = 0, refused = 0, expired = 0, failed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t replayed_hits = 0, preemptions = 0, wasted_tokens = 0, skipped_snapshots = 0;
  int64_t evicted_blocks = 0, evicted_snapshots = 0, stalls = 0, floors_lost = 0;
  int64_t drafted_tokens = 0, verified_tokens = 0, accepted_tokens = 0;
  // Of the persistent store: offers and what became of them, and what was given to it.
  int64_t store_offers = 0, store_loads = 0, store_short_loads = 0, store_declined = 0, store_tokens = 0;
  int64_t store_blocks = 0, store_windows = 0, store_puts = 0, store_put_refusals = 0;
  int64_t store_warm_blocks = 0, store_warm_windows = 0;  // brought in before the start
  int64_t store_lost_tokens = 0;  // were promised and did not come: computed after all
  int64_t store_stall_ns = 0;     // loads were under way and nothing was executed
  // Steps that began before their load had ended; of these, thrown away as it ended short; waited inside.
  int64_t store_early_steps = 0, store_lost_steps = 0, store_step_wait_ns = 0;
  SpeculationStats speculation;
  int64_t steps = 0, prefill_rows = 0, decode_rows = 0, decoder_rows = 0;
  int64_t forward_ns = 0, draft_ns = 0, sample_ns = 0, schedule_ns = 0;
  int64_t plain_steps = 0, plain_forward_ns = 0;  // of steps and forward_ns: without prompt rows
  int64_t overlapped_ns = 0;                      // of schedule_ns, while a step was being executed

  int64_t running = 0, waiting = 0;  // choices
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0;
  int64_t snapshots_total = 0, snapshots_used = 0;
  StoreFigures store;        // of the persistent store itself; empty without one
  int64_t last_step_ns = 0;  // when the last step finished, on the engine's clock; 0: never
  bool draining = false;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Never waits for the model. Errors: kInvalidArgument names the field; kUnavailable while draining;
  // kResourceExhausted when the queue is full. A request that can never run here (see Finish::kRefused) is
  // refused with kInvalidArgument and the sizes.
  virtual Result<RequestId> submit(EngineRequest request) = 0;

  // Ends every choice of the request as soon as the step in flight allows; its kFinished events still come.
  // Unknown or finished ids are ignored.
  virtual void cancel(RequestId request) = 0;
  // Ends one choice (its text is complete: a stop string was seen). The rest goes on.
  virtual void cancel_choice(RequestId request, int choice) = 0;

  // Events since the last call, in order. Waits up to wait_ns for the first one; < 0: without limit. kNews:
  // tokens that continue an answer do not end the wait, though they are returned: who would only hold them
  // back is not woken for each step.
  enum class Until : uint8_t { kAny, kNews };
  virtual std::vector<EngineEvent> poll(int64_t wait_ns, Until until = Until::kAny) = 0;
  // Makes a poll() that waits return now, with what there is.
  virtual void wake() = 0;

  // No new requests from now on. Those submitted go on until `grace_ns` from now, what is left then is
  // cancelled. Returns at once; drained() tells when the last kFinished was handed out.
  virtual void drain(int64_t grace_ns) = 0;
  virtual bool drained() const = 0;

  virtual EngineStats stats() const = 0;
  virtual int64_t now_ns() const = 0;  // the clock of deadlines and times
  virtual int64_t context_tokens() const = 0;
  virtual int64_t vocab_size() const = 0;
};

}  // namespace deepinfer
