// The values that the two threads of the serving engine hand each other: orders (what to run, from the loop)
// and outcomes (what came of it, from the executor). Both are complete in themselves: no pointer into a
// buffer that lives on. Private to the engine. Source: serving specification 5.2, 5.3.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "engine/engine.h"
#include "engine/load_gate.h"
#include "policy/scheduler_types.h"

namespace deepinfer {

// A choice as the executor first hears of it.
struct NewSequence {
  std::shared_ptr<const EngineRequest> request;
  int choice = 0;
  bool publishes = false;     // its generated blocks get keys
  int64_t prompt_blocks = 0;  // with keys
  Digest last_key{};          // parent of the next
  // Set by the loop when the choice is over before its rows were run; saves the work, changes nothing else.
  std::shared_ptr<std::atomic<bool>> cancelled;
};

struct AdmitOrder {
  policy::SeqId seq{};
  std::vector<policy::BlockId> blocks;       // the head of its table, in order
  std::shared_ptr<const NewSequence> fresh;  // null: it comes back after a preemption
  std::shared_ptr<LoadGate> gate;            // of the load of some of the blocks; null: they are all there
};

// A window that came from outside, for a slot that nobody else uses now.
struct WindowOrder {
  policy::SnapshotId slot{};
  std::shared_ptr<WindowSnapshot> window;
};

// Carried out in the order of the fields, after every earlier order.
struct StepOrder {
  std::vector<WindowOrder> windows;
  std::vector<policy::SeqId> forget;   // over
  std::vector<policy::SeqId> suspend;  // preempted: caches go, tokens stay
  std::vector<AdmitOrder> admit;
  policy::StepId step{};  // of `runs`; 0: no step, no outcome
  std::vector<policy::BlockId> new_blocks;
  std::vector<policy::RowRun> runs;
};

struct RunOutcome {
  policy::RowResult result;
  std::vector<TokenEvent> tokens;
  std::vector<TokenEvent> prompt_logprobs;  // of the run that ends the prompt, if asked for
  bool yielded = false;                     // its prompt is done
  bool dropped = false;                     // not run: the choice was over
  Finish finish = Finish::kStop;            // when result.finished
  Status status;
  int64_t drafted = 0, verified = 0, accepted = 0;
};

struct StepOutcome {
  policy::StepId step{};
  std::vector<RunOutcome> runs;  // in the order of the order
  bool irregular = false;        // its time says nothing about the planned rows
  int64_t begin_ns = 0, end_ns = 0;
  int64_t forward_ns = 0, draft_ns = 0, sample_ns = 0;
  int64_t prefill_rows = 0, decode_rows = 0, decoder_rows = 0, dropped_rows = 0;
  int64_t load_wait_ns = 0;      // inside the step, for loads
  SpeculationStats speculation;  // after the step
};

}  // namespace deepinfer
