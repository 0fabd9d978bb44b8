// Whether a stored prefix is worth fetching: its predicted time against computing the same rows. Predictions
// come from fetches that were measured; near the break-even point the choice does not flip with every
// measurement. The planner makes the comparison per request (Arrived::store_ns_per_block); this policy says
// what to tell it. Source: serving specification 7.7; docs/store.md. Threads: plain values.
#pragma once

#include <cstdint>

namespace deepinfer::policy {

struct RestoreRules {
  double smoothing = 0.25;       // weight of a new measurement
  double enter = 1.5;            // while fetching does not pay: it must be predicted so much quicker to begin
  double deadline_factor = 2.0;  // a fetch may take so many times its prediction
  int64_t deadline_floor_ns = 20'000'000;  // a machine may be busy with something else
  int64_t probe_every_ns = 5'000'000'000;  // while it does not pay: one small read to see whether it would
};

struct RestoreState {
  bool measured = false;
  double latency_ns = 1e6;   // of a fetch, before its first byte
  double ns_per_byte = 1.0;  // 1 GB/s until measured
  bool pays = true;
  bool late = false;  // the last fetch missed its deadline, and nothing has come since
  int64_t last_measure_ns = 0;
  int64_t switches = 0;  // of the side
};

struct FetchMeasured {
  int64_t bytes = 0;
  int64_t ns = 0;
  int64_t now_ns = 0;
};
void apply(RestoreState* state, const RestoreRules& rules, const FetchMeasured& fetch);

// A fetch missed its deadline. How slow the store is nobody knows then; it is not asked again before a small
// read (should_probe) has shown it.
struct FetchLate {
  int64_t now_ns = 0;
};
void apply(RestoreState* state, const FetchLate& late);

// What fetching `bytes` is predicted to take.
double predicted_ns(const RestoreState& state, int64_t bytes);

// What the planner is told of a stored prefix: its price per block, with the threshold in it, and for how
// long the fetch may go on; what has not arrived then is computed.
struct RestoreQuote {
  double ns_per_block = 0;
  int64_t deadline_ns = 0;  // after its start
};
RestoreQuote quote(const RestoreState& state, const RestoreRules& rules, int64_t blocks, int64_t bytes);
// The planner chose, for a prefix it was quoted: the side on which the next quote begins.
struct RestoreAdopted {
  bool fetch = false;
};
void apply(RestoreState* state, const RestoreAdopted& adopted);
// Whether a load should bring what the first layers read before the rest, so that a step can begin meanwhile.
// That takes the disk longer than the same bytes in one go, so it is done only when nobody else waits for the
// disk and the step is predicted to be long enough for the rest to come in time.
struct SplitQuery {
  double fetch_ns = 0;      // of the load in one go, predicted
  double rest_part = 0;     // of its bytes, that the later layers read
  double step_ns = 0;       // of the request's first rows, predicted
  double needed_share = 0;  // of the step's time, that has passed when these layers begin
  bool alone = true;        // no other load is under way
};
inline constexpr double kSplitCost = 2.5;  // times as long as in one go; measured, docs/store.md
bool decide_split(const SplitQuery& query);

// Whether a small read should be made now to renew the prediction.
bool should_probe(const RestoreState& state, const RestoreRules& rules, int64_t now_ns);

}  // namespace deepinfer::policy
