// Where the experts of a layer live: how many copies each has and on which ranks they stand, so that the sum
// over recorded steps of the slowest rank's load is small. Balancing averages is not enough: experts that
// peak in the same step must not share a rank. Movement costs; a new map must earn it. Moves no weights;
// knows no time (search is bounded by evaluations). Source: serving specification 6. Threads: plain data,
// pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace deepinfer::policy {

struct EplbShape {
  int experts = 0;
  int ranks = 0;
  int slots = 0;   // per rank; ranks * slots >= experts
  int nodes = 1;   // > 1: hierarchical, whole groups of experts stay on a node
  int groups = 1;  // of experts, consecutive; a multiple of nodes if nodes > 1
  int redundant() const { return ranks * slots - experts; }
};
// Empty, or why no placement of this shape exists.
std::string problem(const EplbShape& shape);

// load[t * experts + e]: tokens routed to expert e in recorded step t.
struct EplbHistory {
  int experts = 0;
  std::vector<float> load;
  int steps() const { return experts > 0 ? static_cast<int>(load.size()) / experts : 0; }
};
// Consecutive steps summed into at most `groups`; steps with less than 1 % of the median's tokens left out.
EplbHistory compress(const EplbHistory& history, int groups);

// slot[g * slots + i]: the expert in slot i of rank g. Every expert at least once; copies share its load.
struct Placement {
  std::vector<int> slot;
  bool operator==(const Placement&) const = default;
};
// Sum over steps of the largest rank load.
double placement_cost(const EplbShape& shape, const EplbHistory& history, const Placement& placement);
// Mean over steps of largest over mean rank load; 1 is perfect. Steps without load do not count.
double moe_lb(const EplbShape& shape, const EplbHistory& history, const Placement& placement);
// Slots whose expert was not on the same rank before (in any slot).
int64_t moved_slots(const EplbShape& shape, const Placement& from, const Placement& to);
// Empty, or the first rule that a placement breaks.
std::string broken_placement(const EplbShape& shape, const Placement& placement);

// The classic rule: copies to the largest mean load per copy, then each on the least loaded rank.
Placement average_greedy(const EplbShape& shape, const EplbHistory& history);

struct EplbSearch {
  int compress_to = 64;
  int64_t evaluations = 400'000;  // of candidate moves
  double risk = 0;                // copies by mean + risk * deviation
  double migration_cost = 0;      // in units of the cost, per moved slot
  double least_gain = 0.005;      // of the old cost
};
enum class EplbReason { kFirst, kBetter, kNotWorthIt, kNoHistory };
const char* name(EplbReason reason);
struct EplbDecision {
  EplbReason reason = EplbReason::kNoHistory;
  Placement placement;  // the new map, or the old one
  double old_cost = 0, new_cost = 0;
  int64_t moved = 0;
};
// `current` may be empty: then any map is better. The answer is relabelled so that little moves.
EplbDecision decide_experts(const EplbShape& shape, const EplbHistory& history, const Placement& current,
                            const EplbSearch& search);

// ---- when: windows, intervals, and a rearrangement that is under way

struct EplbConfig {
  EplbShape shape;
  EplbSearch search;
  int64_t window_steps = 1000;
  int64_t interval_steps = 10000;
  int64_t deadline_ns = 30'000'000'000;
};
EplbConfig prefill_eplb(int ranks);  // the published starting values
EplbConfig decode_eplb(int ranks);

enum class EplbPhase : uint8_t { kIdle, kMoving };
struct EplbState {
  EplbConfig config;
  Placement placement;
  int64_t version = 0;
  int64_t steps = 0;  // every step counts, idle ones too: ranks agree by this counter
  int64_t next_due = 0;
  std::vector<float> window;  // a ring of recorded steps
  int64_t recorded = 0;
  EplbPhase phase = EplbPhase::kIdle;
  Placement pending;
  int64_t pending_id = 0, pending_since_ns = 0;
  int ready_ranks = 0;
  int64_t done = 0, aborted = 0, kept = 0;
};
EplbState make_eplb(const EplbConfig& config);
EplbHistory history_of(const EplbState& state);  // oldest first

struct EplbStep {
  std::vector<float> load;  // empty: an idle step, which counts but is no sample
};
struct EplbStarted {  // adopts a decision at an interval: kNotWorthIt and kNoHistory only move the date
  EplbDecision decision;
  int64_t now_ns = 0;
};
struct EplbRankReady {  // a rank holds all weights of the pending map
  int64_t id = 0;
};
struct EplbSwapped {  // all ranks changed maps at one step boundary
  int64_t id = 0;
};
struct EplbAborted {  // late, or a rank reports another version
  int64_t id = 0;
};
struct EplbResized {  // another set of ranks: what was recorded means nothing any more
  EplbShape shape;
};
using EplbEvent = std::variant<EplbStep, EplbStarted, EplbRankReady, EplbSwapped, EplbAborted, EplbResized>;
void apply(EplbState* state, const EplbEvent& event);

enum class EplbAction { kNone, kRearrange, kSwap, kAbort };
EplbAction decide_action(const EplbState& state, int64_t now_ns);
bool weight_update_allowed(const EplbState& state);  // not while a rearrangement is pending

}  // namespace deepinfer::policy
