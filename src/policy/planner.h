// The work of scheduler.h's decide(): one object per plan, with the plan so far and what it has used up.
// Private to the room. Threads: one plan, one thread.
#pragma once

#include <set>
#include <vector>

#include "policy/scheduler.h"

namespace deepinfer::policy {

class Planner {
 public:
  Planner(const SchedulerState& state, const PlanQuery& query);
  StepPlan plan();

 private:
  // What the plan has done to a request, by slot.
  enum Mark : uint8_t {
    kPlanned = 1,
    kPreempted = 2,
    kRevoked = 4,
    kEnded = 8,
    kAdmitted = 16,
    kBlocked = 32
  };

  // A prompt (or a resumed one) of which a chunk may run.
  struct Prompt {
    uint32_t slot = 0;
    int64_t begin = 0, end = 0;
    int64_t have_blocks = 0;
    int64_t decoder_floor = 0, encoder_floor = 0, publish_from = 0;
    SnapshotId restore = kNoSnapshot;
    int64_t admission = -1;  // index in plan_.admit of a request let in by this plan
  };

  const Request& req(uint32_t slot) const { return s_.slots[slot]; }
  bool marked(uint32_t slot, int marks) const { return (marks_[slot] & marks) != 0; }

  // planner.cc: the order of a step
  void end_requests();
  int64_t choose_budget() const;
  void plan_decodes();
  void plan_prompts();
  PlanReason idle_reason() const;
  void admit_overdue();
  void run_starving();
  void run_urgent();
  void run_short();
  void pull();
  void fill();
  std::vector<Prompt> running_prompts() const;
  Prompt prompt_of(uint32_t slot) const;
  bool may_run(const Request& r) const { return r.phase == Phase::kRunning || r.early; }
  bool comes_in_time(const Request& r, int64_t begin, int64_t rows) const;
  bool run_prompt(Prompt* prompt, double time_ns, bool must_progress, bool whole);
  int64_t chunk_rows(const Prompt& prompt, double time_ns, bool must_progress) const;
  void add_run(RowRun run, int64_t upto_tokens);
  void plan_snapshot(RowRun* run);
  void plan_cap_snapshot(RowRun* run);
  SnapshotId slot_for_prompt(const Request& r, int64_t boundary);
  bool is_short(const Request& r, double cost_ns) const;

  // planner_blocks.cc: who gives blocks
  bool make_room(uint32_t slot, int64_t blocks, int64_t promised);
  bool preempt_for(uint32_t slot);
  int64_t gain_of(const Request& r) const;
  bool take_blocks(int64_t count);
  BlockId take_one();
  bool revoke_one();
  void offer(BlockId id);
  SnapshotId take_snapshot_slot();
  bool has_snapshot_slot() const;

  // planner_admit.cc: who is let in
  bool try_admit(uint32_t slot);
  uint32_t oldest_waiting() const;
  std::vector<BlockId> match(const Request& r) const;
  std::vector<int64_t> snapshot_boundaries(const Request& r, int64_t blocks) const;
  // What an admission takes from the store.
  struct StorePart {
    int64_t blocks = 0;
    bool window = false;
  };
  Admission judge_hit(uint32_t slot, const std::vector<BlockId>& matched, StorePart* from_store) const;
  void judge_store(const Request& r, int64_t have, const HitQuery& query, Admission* a,
                   StorePart* from_store) const;
  HitDecision hit_with(const Request& r, HitQuery query, int64_t blocks, bool store_windows) const;
  bool reserve(Admission* a, int64_t load_blocks);

  const SchedulerState& s_;
  const PlanQuery& q_;
  StepPlan plan_;
  std::vector<uint8_t> marks_;
  double left_ns_ = 0;  // of the budget
  double short_left_ns_ = 0;
  int64_t available_ = 0;  // blocks promised to nobody
  int64_t incoming_ = 0;   // of preempted requests, when their steps in flight have finished
  int64_t seats_ = 0;
  int64_t bypasses_ = 0;
  double used_ns_[kTiers] = {0, 0, 0, 0};
  int32_t free_cursor_ = -1, idle_cursor_ = -1, free_snapshot_cursor_ = -1, ready_snapshot_cursor_ = -1;
  std::vector<BlockId> offered_;  // blocks that preempting or revoking in this plan frees, next at the back
  std::set<BlockId> kept_, evicted_;
  std::set<SnapshotId> kept_snapshots_;
  std::map<BlockId, int32_t> dropped_refs_, dropped_leases_;  // by this plan
  std::vector<Prompt> admitted_;                              // let in by this plan, in order
};

}  // namespace deepinfer::policy
