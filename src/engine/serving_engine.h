// The serving engine: continuous batching of one model on one machine behind engine.h. Two threads: the loop
// decides (policy state, request table, events), the executor computes (sequences, caches, sampling); while
// step n is executed, step n + 1 is decided. Source: serving specification 1 to 3, 5, 11; docs/engine.md.
// Threads: as engine.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/trace.h"
#include "policy/scheduler.h"
#include "policy/speculation.h"

namespace deepinfer {

struct EngineConfig {
  int64_t pool_bytes = int64_t{1} << 30;  // cache blocks; memory is taken as they are first used
  int64_t pool_blocks = 0;                // > 0: so many blocks, whatever their size
  int64_t snapshot_slots = 64;            // stored windows; 0: every hit without one is a replay
  int64_t max_running = 64;               // choices that hold caches at once
  int64_t max_waiting = 4096;             // choices in line; a request beyond is kResourceExhausted
  int64_t context_tokens = 0;             // 0: the model's; more than that is refused at start-up
  int64_t keep_tokens = 0;  // decoder rows at a prompt's end; 0: window + drafts + 1; VENDOR: 140
  int drafts = -1;          // most guesses verified per decode row; -1: the model's, 0: none
  policy::SpeculationConfig speculation;  // how many of them; its `drafts` is set from the model
  // How a guess is judged. kShared: by the target's own draw, which no guess can change. kRatio: by the
  // classical rule, whose answers depend on how much was guessed; the distribution is the same.
  enum class Acceptance : uint8_t { kShared, kRatio } acceptance = Acceptance::kShared;
  // Guesses of the caller's in place of the draft stages': what is known (the prompt and what was said) and
  // the stages' own guesses, which it may replace one by one. Wrong ones cost time, never an answer. On the
  // executing thread. Not together with kRatio, which must know what a guess was drawn from.
  std::function<void(const std::vector<int32_t>& known, std::vector<int32_t>* guesses)> guesses;
  bool exact_hits = false;    // for every request (see EngineRequest::exact_hits)
  bool cap_snapshots = true;  // see policy::SchedulerConfig
  int64_t chunk_max_tokens = 32768;
  int64_t batch_budget_ns = 400'000'000;
  int64_t interactive_budget_ns = 100'000'000;
  int max_in_flight = 2;  // 1: decide only when nothing is being executed
  bool plan_late = true;  // decide the next step towards the end of a long one: who comes meanwhile is in it
  // Cost of steps: measured at start-up for at most so long (0: not at all), then refitted from what runs.
  int64_t calibrate_ns = 1'000'000'000;
  policy::CostModel cost;  // until measured
  // Digests of what cached blocks depend on; empty weights_digest: weights_identity().
  std::string weights_digest, tokenizer_digest;

  // Everything the scheduler is told, on the loop thread: an event log that replays to the same decisions.
  std::function<void(const policy::Event&)> on_policy_event;
  TraceSink* trace = nullptr;    // outlives the engine
  PrefixStore* store = nullptr;  // outlives the engine; null: none
  bool store_late = false;       // it is given blocks when a request ends, not as they are completed
  // Blocks are stored, and read again where that pays, in two parts of at least so many bytes each, what the
  // first layers read before the rest, where the model's blocks are large enough. 0: in one part, as disks
  // like it.
  int64_t store_split_bytes = 0;
  int64_t store_warm_ns = 0;  // what was used last is read into memory before the start, for so long
  // Made-up experts, for measurements: answers then mean nothing and depend on what else runs. make_engine
  // only; not together with a store.
  Routing routing = Routing::kModel;
  bool poison_blocks = false;  // tests: blocks that change hands are filled with a pattern
};

class ServingEngine : public Engine {
 public:
  // Runs `look` on the loop thread between two decisions and applies the events it returns. For tests, tools
  // and losses from outside (BlocksLost, SnapshotsLost). Waits for the loop.
  virtual void inspect(
      const std::function<std::vector<policy::Event>(const policy::SchedulerState&)>& look) = 0;
  // Forgets every cached block and window that nobody uses now.
  virtual void clear_cache() = 0;
  virtual const policy::SchedulerConfig& scheduler() const = 0;  // fixed at start-up
  virtual const policy::CostModel& calibrated() const = 0;       // at start-up
};

using EngineClock = std::function<int64_t()>;  // nanoseconds; any thread

// `model` and `pool` outlive the engine and are its alone: nobody else may run either meanwhile. Errors:
// kInvalidConfig names the setting; kResourceExhausted when the cache gets no memory.
Result<std::unique_ptr<ServingEngine>> make_serving_engine(Forward<float>* model, const ModelWeights& weights,
                                                           ThreadPool* pool, const EngineConfig& config,
                                                           EngineClock clock);
// The same; the engine owns its forward pass. `weights` and `pool` outlive it.
Result<std::unique_ptr<Engine>> make_engine(const ModelWeights* weights, ThreadPool* pool,
                                            const EngineConfig& config, EngineClock clock);

// Measures steps of different sizes for at most budget_ns and fits the cost model; `fallback` where too
// little could be measured. Uses block 0 of the arena as the cache of a made-up sequence.
policy::CostModel calibrate_cost(Forward<float>* model, BlockArena* arena, int64_t budget_ns,
                                 int64_t context_tokens, const policy::CostModel& fallback,
                                 const EngineClock& clock);
// Measures verification rows and draft passes for at most budget_ns; empty curves without drafts or time.
policy::CurvesMeasured measure_curves(Forward<float>* model, BlockArena* arena, int64_t budget_ns,
                                      int64_t most_rows, int64_t most_requests, const EngineClock& clock);

}  // namespace deepinfer
