// Carries out step orders: owns every sequence's tokens, caches, sampler state and constraint, the window
// snapshots, and the one forward pass per step. Decides what a row's logits mean: token, stop, length, error.
// Knows no queue, no scheduler state and no other thread; what it does is a function of the orders alone.
// Private to the engine. Source: serving specification 5; docs/engine.md. Threads: one caller (the executor
// thread); work inside a step is spread over the pool.
#pragma once

#include <functional>
#include <unordered_map>

#include "engine/forward.h"
#include "engine/step_order.h"
#include "engine/trace.h"
#include "policy/speculation.h"

namespace deepinfer {

struct StepRunnerOptions {
  int drafts = 0;           // most guesses verified per decode row; 0: none
  bool ratio_rule = false;  // see EngineConfig::Acceptance
  std::function<void(const std::vector<int32_t>&, std::vector<int32_t>*)> guesses;  // see EngineConfig
  policy::SpeculationConfig speculation;
  policy::CurvesMeasured curves;
  int64_t snapshot_slots = 0;
  bool poison_blocks = false;
  TraceSink* trace = nullptr;
  std::function<int64_t()> now_ns;
};

class StepRunner {
 public:
  // All outlive this object.
  StepRunner(Forward<float>* model, ThreadPool* pool, BlockArena* arena, const StepRunnerOptions& options);
  ~StepRunner();

  StepOutcome execute(const StepOrder& order);
  // A window that a step whose outcome was handed out has captured. Any thread, until its slot is used again.
  const WindowSnapshot& window(policy::SnapshotId id) const {
    return snapshots_[static_cast<size_t>(raw(id))];
  }
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct Sequence;
  struct Work;

  void settle(const StepOrder& order);
  void suspend(Sequence* s);
  bool prepare(const StepOrder& order, const policy::RowRun& run, Work* work, StepOutcome* out);
  void enter(Sequence* s, const StepOrder& order, const policy::RowRun& run);
  void prepare_decode(Work* work);
  void lose(Sequence* s, RunOutcome* outcome, StepOutcome* out);
  void settle_loads(std::vector<Work>* works, StepOutcome* out);
  void guess(std::vector<Work>* works, StepOutcome* out);
  void draft(const std::vector<Work*>& askers, StepOutcome* out);
  void own_guesses(const std::vector<int32_t>& known, std::vector<int32_t>* drafts);
  void choose_lengths(const std::vector<Work*>& askers, const policy::BudgetDecision& decision);
  void judge(const std::vector<Work>& works, int64_t experts, StepOutcome* out);
  void cut_drafts(Sequence* s, std::vector<int32_t>* drafts);
  void place_decode(Work* work, StepOutcome* out);
  void prepare_prefill(const policy::RowRun& run, Work* work, StepOutcome* out);
  void score_prompt(Sequence* s, const ForwardResult<float>& r, size_t first_row, int64_t rows);
  void capture(const policy::RowRun& run, int64_t begin, int64_t end, RowSpan* span);

  void conclude(const ForwardResult<float>& logits, Work* work, std::vector<float>* scratch);
  void verify(const ForwardResult<float>& logits, Work* work, std::vector<float>* scratch);
  int32_t pick(Sequence* s, const float* row, int64_t position, const Work& work, size_t i,
               std::vector<float>* scratch, std::vector<uint32_t>* mask, Status* why);
  bool emit(Sequence* s, int32_t id, const float* row, Work* work);
  void add_keys(Sequence* s, policy::RowResult* result);
  TokenEvent event_of(const float* row, int32_t id, int top) const;
  void span(const char* name, int64_t step, int64_t begin_ns, int64_t end_ns);

  Forward<float>* model_;
  ThreadPool* pool_;
  BlockArena* arena_;
  StepRunnerOptions options_;
  int64_t vocab_ = 0, block_tokens_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // by SeqId
  std::vector<std::unique_ptr<SequenceState>> spare_;                  // reset before use
  policy::SpeculationState speculation_;
  std::vector<WindowSnapshot> snapshots_;  // by SnapshotId, made when first used
};

}  // namespace deepinfer
