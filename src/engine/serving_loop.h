// The books of the serving engine and its decisions: which requests there are, what the scheduler's policy is
// told, what the executor is ordered, what the outside hears. One object without threads, locks or waiting,
// so that it can be driven by hand. Private to the engine. Source: serving specification 5. Threads: one
// owner (the loop thread).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "engine/serving_engine.h"
#include "engine/step_order.h"
#include "engine/store_bridge.h"

namespace deepinfer {

// A request that was checked, with the keys of its prompt.
struct Submission {
  RequestId id{};
  std::shared_ptr<const EngineRequest> request;
  std::vector<policy::BlockKey> keys;
  Digest last_key{};
  int64_t submitted_ns = 0;
  std::shared_ptr<const StoreOffer> offer;  // of the persistent store; null: none
};

class ServingLoop {
 public:
  // plan_late: while a long step is being executed, decide the next one only towards its end, so that who
  // comes meanwhile is in it. A prediction that was too long costs the overlap of one decision.
  ServingLoop(policy::SchedulerState state, bool plan_late,
              std::function<void(const policy::Event&)> on_event);
  ~ServingLoop();

  void submit(const Submission& submission, int64_t now_ns);
  void cancel(RequestId request, int64_t now_ns);
  void cancel_choice(RequestId request, int choice, int64_t now_ns);
  // What is left at deadline_ns is cancelled.
  void drain(int64_t deadline_ns);
  void finish(StepOutcome outcome, int64_t now_ns);
  void happen(const policy::Event& event);
  // With a store: loads are begun and what is computed is offered through it. `late`: offered when a choice
  // ends, else as it is completed. The bridge outlives this object.
  // rest_share: of a step's time, what passes before it needs what comes last (policy::StoreReady).
  void use_store(StoreBridge* bridge, bool late, double rest_share) {
    bridge_ = bridge;
    write_late_ = late;
    rest_share_ = rest_share;
  }
  void first_loaded(FirstLoaded first, int64_t now_ns);
  void loaded(Loaded loaded, int64_t now_ns);
  void warm(WarmStart start);

  // The next order, if there is anything to do now: a step, or what changed hands without one.
  std::optional<StepOrder> next_order(int64_t now_ns);
  // When next_order should be asked again although nothing happened; INT64_MAX: never.
  int64_t next_wake_ns(int64_t now_ns) const;

  std::vector<EngineEvent> take_events() { return std::move(events_); }
  const policy::SchedulerState& state() const { return state_; }
  int64_t in_flight() const { return static_cast<int64_t>(state_.in_flight.size()); }
  int64_t live_choices() const { return static_cast<int64_t>(choices_.size()) + held_; }
  EngineStats stats() const;

 private:
  struct Choice;
  struct Live;

  void arrive(Live* live, int choice, int64_t now_ns);
  void release_held(Live* live, int64_t now_ns);
  void start(Choice* choice);
  void end(policy::SeqId seq, Finish finish, Status status, int64_t now_ns, bool tell_policy);
  void end_held(Live* live, int choice, Finish finish, const Status& status, int64_t now_ns);
  void adopt(const policy::StepPlan& plan, int64_t now_ns, StepOrder* order);
  void take_outcome(const policy::RowRun& run, RunOutcome* out, int64_t now_ns);
  void count_finish(Finish finish);
  void begin_load(Choice* choice, const policy::Admission& admission);
  void count_store_hit(Choice* choice, int64_t start_tokens, bool replayed);
  void count_stall(int64_t now_ns);
  void note_windows(Choice* choice, const policy::RowRun& run);
  void take_keys(const policy::StepFinished& finished);
  void offer_blocks(Choice* choice);
  void offer_windows(Choice* choice);
  // A step with this prediction begins to be executed.
  void hold_planning(int64_t now_ns, double predicted_ns);

  policy::SchedulerState state_;
  std::function<void(const policy::Event&)> on_event_;
  std::map<uint64_t, std::unique_ptr<Live>> live_;            // by RequestId
  std::map<policy::SeqId, std::unique_ptr<Choice>> choices_;  // told to the policy and not over
  std::vector<policy::SeqId> forget_;                         // for the next order
  std::vector<WindowOrder> windows_;                          // likewise
  StoreBridge* bridge_ = nullptr;
  bool write_late_ = false;
  double rest_share_ = 0;
  int64_t stalled_since_ns_ = 0;  // loads are under way and nothing is executed; 0: not so
  std::vector<EngineEvent> events_;
  uint64_t last_seq_ = 0;
  bool plan_late_ = false;
  int64_t plan_from_ns_ = 0;      // no decision before, while a step is in flight
  std::deque<double> flying_ns_;  // predictions of the steps in flight
  int64_t held_ = 0;              // choices that wait for their first one
  int64_t drain_deadline_ns_ = INT64_MAX;
  bool draining_ = false;
  EngineStats totals_;  // what the policy does not count
};

}  // namespace deepinfer
