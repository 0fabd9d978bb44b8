// The words of the step scheduler: its configuration, events, plans and state, all plain data.
// Source: serving specification 1 to 3, 5 and 16.1. Threads: plain values.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "policy/cache.h"
#include "policy/cost_fit.h"
#include "policy/cost_model.h"
#include "policy/hit.h"
#include "policy/ids.h"
#include "policy/tiers.h"

namespace deepinfer::policy {

struct SchedulerConfig {
  ReplayRules replay;  // a cache block has replay.window_tokens positions
  int64_t context_tokens = 0;
  int64_t drafts = 0;  // rows a decode step may add to verify guesses; at most replay.backtrack - 1
  int64_t pool_blocks = 0;
  int64_t snapshot_slots = 0;
  int64_t max_running = 256;  // seats
  int64_t chunk_max_tokens = 32768;
  int64_t batch_budget_ns = 400'000'000;        // a step when only long prompts run
  int64_t interactive_budget_ns = 100'000'000;  // a step while somebody decodes or a short request waits
  int64_t min_budget_ns = 1'000'000;
  double short_fraction =
      0.25;  // a prompt of the two shorter tiers is short if it costs at most this of a budget
  double long_fraction = 0.5;   // what short work must leave of a step to long prompts
  int64_t starve_steps = 8;     // every running prompt gets a block at least once in so many steps
  int64_t max_bypass = 16;      // admissions that may go before the oldest waiting request
  int64_t scan_window = 8;      // waiting requests looked at past one that does not fit
  int64_t max_preemptions = 4;  // after so many, a request comes back only with all its blocks promised
  int64_t max_in_flight = 2;    // steps planned and not finished
  int64_t lease_grace_ns = 0;   // blocks of an expired outside lease stay pinned for so long
  bool exact_hits = false;      // HitMode::kExact for every request
  // A second window per prompt, at the longest hit the prompt itself could have: the same prompt again, its
  // other answers and its own resumption start there exactly, instead of at an earlier boundary or nowhere.
  bool cap_snapshots = false;
  TierConfig tiers;
  CostModel cost;
};

enum class EndReason {
  kAccepted,
  kEmptyPrompt,
  kTooLongForContext,
  kTooLongForPool,
  kDeadlineExpired,
  kDeadlineImpossible,  // even started now and alone, the prompt could not be finished in time
};
const char* name(EndReason reason);

// ---- events ----

struct Arrived {
  SeqId seq{};
  int64_t now_ns = 0;
  int64_t prompt_tokens = 0;
  int64_t max_new_tokens = 1;
  std::vector<BlockKey> keys;  // of the prompt's full blocks; fewer: the rest is not cacheable
  TenantId tenant{};
  double weight = 1;           // of the tenant
  int priority = 0;            // higher goes first
  int64_t deadline_ns = 0;     // 0: none
  bool exact = false;          // never an approximated window
  bool whole_decoder = false;  // every row runs the decoder half: no hit, decoder floor 0
  // Leading blocks an outside store holds, and its predicted time to bring one here. 0: none.
  int64_t store_blocks = 0;
  int64_t store_ns_per_block = 0;
  // Boundaries (in tokens, ascending, whole blocks) at which it holds a window, and its time to bring one.
  std::vector<int64_t> store_windows;
  int64_t store_ns_per_window = 0;
};
struct RowResult {
  SeqId seq{};
  int64_t new_tokens = 0;          // tokens decided: accepted drafts and the model's own
  bool finished = false;           // stop token, limit or error: no further rows
  bool failed = false;             // with finished: nothing of this step may be published
  bool lost = false;               // RowRun::loading, and the load ended short: as if it had not run
  bool snapshot_taken = false;     // the run's snapshots were copied (boundaries reached by committed rows)
  std::vector<BlockKey> new_keys;  // of generated blocks that became full, in order
};
struct StepFinished {
  StepId step{};
  int64_t now_ns = 0;
  double measured_ns = 0;
  bool exclude_from_fit = false;
  std::vector<RowResult> results;  // one per run of the plan, in its order
};
struct Cancelled {
  SeqId seq{};
};
// Of a load under way the window and what the first layers read of every block are in place. The rest is
// predicted to be there at due_ns, and is needed when `share` of a step's time has passed: a step that is
// predicted to get there no sooner may begin, and waits inside if it must.
struct StoreReady {
  SeqId seq{};
  bool window = false;  // the window it was asked for is there too
  int64_t due_ns = 0;
  double share = 0;
};
// The store finished a load: so many leading blocks arrived whole and verified. Comes before the end of a
// step that has begun without all of them.
struct StoreResult {
  SeqId seq{};
  int64_t loaded_blocks = 0;
  bool window = false;  // the window it was asked for is there too
};
// An outside reader holds blocks and snapshots; refused leases are the caller's (lease_allowed).
struct LeaseTaken {
  LeaseId lease{};
  std::vector<BlockId> blocks;
  std::vector<SnapshotId> snapshots;
  int64_t expires_ns = INT64_MAX;
};
struct BlocksFreed {  // the reader is done
  LeaseId lease{};
};
struct BlocksLost {  // integrity failure: never hit again
  std::vector<BlockId> blocks;
};
struct SnapshotsLost {
  std::vector<SnapshotId> snapshots;
};
struct Tick {
  int64_t now_ns = 0;
};
// Before anybody came: blocks and windows that an outside store has put in place, least wanted first. Their
// places are free.
struct Warmed {
  struct Block {
    BlockId id{};
    BlockKey key;
    int32_t index = 0;  // of the block in its prefix
  };
  struct Window {
    SnapshotId id{};
    BlockKey key;
    int64_t boundary_tokens = 0;
  };
  std::vector<Block> blocks;
  std::vector<Window> windows;
};

// ---- plans ----

struct PlanQuery {
  int64_t now_ns = 0;
  int64_t budget_ns = 0;  // the group's agreed budget; 0: this rank's own
};

enum class PlanReason { kRuns, kIdle, kInFlight, kNoCapacity };
const char* name(PlanReason reason);

// Rows [begin, begin + rows) of one sequence. While an earlier step of it is in flight with drafts, begin is
// the least it can be; the true begin is known when that step has finished.
struct RowRun {
  SeqId seq{};
  uint32_t slot = 0;
  bool prefill = false;
  bool yields = false;  // the last row decides a token
  int64_t begin = 0;
  int64_t begin_max = 0;  // == begin unless drafts are in flight
  int64_t rows = 0;       // 1 + drafts in decode
  int64_t drafts = 0;
  int64_t decoder_rows = 0;  // rows at or after the decoder floor
  int64_t publish_from = 0;  // rows below it must not write main KV or index keys
  // Blocks appended to the sequence's table: new_blocks[first_block, first_block + block_count) of the plan.
  int32_t first_block = 0, block_count = 0;
  // Copy the encoder window here when this boundary is reached by committed rows.
  SnapshotId snapshot = kNoSnapshot;
  int64_t snapshot_boundary = 0;
  SnapshotId cap_snapshot = kNoSnapshot;  // likewise, in prompts
  int64_t cap_boundary = 0;
  SnapshotId restore = kNoSnapshot;  // put this window in place first: it ends at `begin`
  bool loading = false;              // later layers of its blocks are still coming (StoreReady)
  int64_t encoder_floor = 0;         // window reads of the two halves never go below these; rows at or after
  int64_t decoder_floor = 0;         // decoder_floor run the decoder half
};
struct Admission {
  SeqId seq{};
  uint32_t slot = 0;
  HitDecision hit;
  int64_t decoder_floor = 0;  // for life
  int64_t encoder_floor = 0;
  bool resumed = false;
  bool floor_lost = false;  // resumed, but the approximated prefix it began with is gone: exact from here
  SnapshotId restore = kNoSnapshot;
  std::vector<BlockId> shared;           // the hit's blocks, in order
  std::vector<BlockId> load;             // blocks to fill from the store, after the shared ones
  SnapshotId load_window = kNoSnapshot;  // slot to fill from the store: the window at hit.start_tokens
  bool loads() const { return !load.empty() || load_window != kNoSnapshot; }
  int64_t promised_blocks = 0;  // kept back for it beyond those given in this plan
};
struct Preemption {
  SeqId seq{};
  uint32_t slot = 0;
  SeqId for_seq{};
  int64_t gained_blocks = 0;  // at least 1
  bool now = false;           // false: its blocks come back when the step in flight has finished
};
struct Ending {
  SeqId seq{};
  uint32_t slot = 0;
  EndReason reason{};
  int64_t need = 0, limit = 0;
};
// Carry out in the order of the fields.
struct StepPlan {
  StepId step{};
  PlanReason reason = PlanReason::kIdle;
  int64_t budget_ns = 0;
  double predicted_ns = 0;
  std::vector<Ending> end;
  std::vector<SeqId> revoke;  // waiting requests that lose their hold on cached blocks
  std::vector<Preemption> preempt;
  std::vector<BlockId> evict;
  std::vector<SnapshotId> evict_snapshots;
  std::vector<Admission> admit;
  std::vector<BlockId> new_blocks;
  std::vector<RowRun> runs;
  std::vector<SeqId> stalled;     // run nothing for want of blocks
  int64_t snapshots_skipped = 0;  // no slot could be had
  CostSample sample;              // for the fit
  bool launches() const { return !runs.empty(); }
};
struct PlanAdopted {
  StepPlan plan;
  int64_t now_ns = 0;
};

using Event = std::variant<Arrived, PlanAdopted, StepFinished, Cancelled, StoreResult, LeaseTaken,
                           BlocksFreed, BlocksLost, SnapshotsLost, Tick, Warmed, CostAdopted, StoreReady>;

// ---- state ----

enum class Phase : uint8_t {
  kNone,        // the slot is unused
  kWaiting,     // in its tier's queue, or preempted and next in line
  kLoading,     // blocks are coming from the store
  kRunning,     // prefill or decode
  kPreempting,  // yields its blocks when the steps in flight have finished
  kEnding,      // over; holds its blocks until the steps or the load in flight have finished
};
const char* name(Phase phase);

struct Request {
  Phase phase = Phase::kNone;
  SeqId seq{};
  TenantId tenant{};
  double weight = 1;
  int priority = 0;
  int tier = 0;
  bool exact = false;
  bool whole_decoder = false;
  uint64_t arrival = 0;  // consecutive: who came first
  int64_t arrived_ns = 0;
  int64_t deadline_ns = 0;
  EndReason doomed = EndReason::kAccepted;  // ends in the next plan
  int64_t need = 0, limit = 0;              // of the doom
  int64_t prompt_tokens = 0;
  int64_t limit_tokens = 0;  // prompt and all new tokens
  int64_t store_blocks = 0, store_ns_per_block = 0, store_ns_per_window = 0;
  std::vector<int64_t> store_windows;
  std::vector<BlockKey> keys;
  QueueKey queued;  // its key in the tier's queue; queued.arrival == 0: not there

  std::vector<BlockId> leased;  // while waiting: the leading blocks it will hit
  std::vector<BlockId> blocks;  // while it holds blocks: its table
  int64_t promised_blocks = 0;
  int64_t published_blocks = 0;  // of the table: offered to the index

  bool admitted_before = false;
  HitDecision hit;  // of the first admission
  int64_t decoder_floor = 0, encoder_floor = 0;
  bool replayed = false;  // what it computes follows from an approximated window
  int64_t publish_from = 0;
  int64_t known_tokens = 0;            // prompt and committed output
  int64_t computed_tokens = 0;         // committed rows
  int64_t prefill_end = 0;             // known_tokens when it was last admitted
  SnapshotId restoring = kNoSnapshot;  // pinned until its first step has finished
  bool restore_due = false;            // its next run restores it
  SnapshotId loading = kNoSnapshot;    // slot the store is filling for it
  int64_t loading_blocks = 0;          // of `blocks`, after the published ones: the store is filling them
  bool early = false;                  // kLoading: one run may begin (StoreReady)
  int64_t early_due_ns = 0;
  double early_share = 0;
  SnapshotId last_snapshot = kNoSnapshot;  // of its output, replaced by the next
  BlockKey last_snapshot_key;

  int32_t steps_in_flight = 0;
  int64_t rows_least = 0, rows_most = 0;  // what the steps in flight will commit
  int64_t idle_steps = 0;                 // steps adopted since it last ran
  int32_t preemptions = 0;
  double outstanding_ns = 0;  // its part of the tier's used work
};

struct Counters {
  int64_t arrived = 0, ended = 0, finished = 0, cancelled = 0, ignored_events = 0;
  int64_t admitted = 0, resumed = 0, preemptions = 0, revocations = 0, floors_lost = 0;
  int64_t evicted_blocks = 0, evicted_snapshots = 0, skipped_snapshots = 0, lost_blocks = 0;
  int64_t prompt_tokens = 0, hit_tokens = 0, replayed_hits = 0;
  int64_t lost_to_cap = 0, lost_to_rounding = 0, lost_to_snapshot = 0, lost_to_missing_blocks = 0;
  int64_t wasted_tokens = 0, loaded_blocks = 0, loaded_windows = 0, stalls = 0;
  int64_t early_runs = 0, lost_runs = 0;  // begun before their load had ended; of these, in vain
};

// Who goes first when blocks are short: priority, then age. Preemption does not change it.
struct Seniority {
  int64_t minus_priority = 0;
  uint64_t arrival = 0;
  uint32_t slot = 0;
  auto operator<=>(const Seniority&) const = default;
};
inline Seniority seniority(const Request& r, uint32_t slot) {
  return {-int64_t{r.priority}, r.arrival, slot};
}

struct InFlight {
  StepId step{};
  std::vector<RowRun> runs;
  CostSample sample;
};
struct OutsideLease {
  std::vector<BlockId> blocks;
  std::vector<SnapshotId> snapshots;
  int64_t expires_ns = 0;
};

struct SchedulerState {
  SchedulerConfig config;
  CacheState cache;
  FitState fit;  // fit.model is the cost model in use
  std::vector<Request> slots;
  std::vector<uint32_t> free_slots;
  std::map<SeqId, uint32_t> by_seq;                        // every request that is not kEnding
  std::vector<uint32_t> running;                           // kRunning and kLoading, most senior first
  std::set<Seniority> preempted;                           // waiting to come back
  FairQueue queues[kTiers];                                // waiting for the first time
  std::set<std::pair<uint64_t, uint32_t>> waiting_by_age;  // all that wait
  std::set<std::pair<int64_t, uint32_t>> deadlines;        // of all that have one
  std::set<uint32_t> doomed;
  std::map<SeqId, uint32_t> ended_loads;  // kEnding, waiting for the store to let go of its blocks
  double used_ns[kTiers] = {0, 0, 0, 0};
  int64_t promised_blocks = 0;  // sum over requests
  int64_t lingering = 0;        // kPreempting and kEnding: still in a seat
  int64_t bypasses = 0;         // admissions since the oldest waiting request was admitted
  std::deque<InFlight> in_flight;
  std::map<LeaseId, OutsideLease> leases;
  uint64_t arrivals = 0;
  int64_t next_step = 1;
  Counters counters;
};

inline int64_t window(const SchedulerState& s) {
  return s.config.replay.window_tokens;
}
inline int64_t blocks_for(const SchedulerState& s, int64_t tokens) {
  return (tokens + window(s) - 1) / window(s);
}
inline int64_t boundary_below(const SchedulerState& s, int64_t tokens) {
  return tokens / window(s) * window(s);
}
inline const Request& at(const SchedulerState& s, uint32_t slot) {
  return s.slots[slot];
}
// First row not yet run or in flight: the least it can be.
inline int64_t next_row(const Request& r) {
  return r.computed_tokens + r.rows_least;
}
inline bool in_prefill(const Request& r) {
  return next_row(r) < r.prefill_end;
}
// Blocks nobody was promised.
inline int64_t available_blocks(const SchedulerState& s) {
  return obtainable(s.cache) - s.promised_blocks;
}

}  // namespace deepinfer::policy
