// `deepinfer bench simulated`: a workload on the serving engine, and the same arrivals through the
// simulator's engine with costs fitted from that very run. From the engine's event log come the steps that
// are fitted, the time between steps, and the proof that a fresh scheduler plans all of it again. Knows any
// engine's log and no model. Source: serving specification 14.2 to 14.4. Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/load_report.h"
#include "apps/recorded_run.h"
#include "sim/engine_sim.h"

namespace deepinfer {

struct FittedCosts {
  policy::CostModel model;
  bool fitted = false;  // false: too few steps or too far from the model; `model` is the start-up one, scaled
  double median_error = 0;     // relative, of the fit
  int64_t steps = 0;           // it was fitted to
  double host_ns = 0;          // median time between steps in a row
  double submit_ns = 0;        // median from a request's arrival until the scheduler was told
  double tokens_per_step = 1;  // of a decoding request
};
FittedCosts fit_costs(const RecordedRun& run);

// The requests that ended well, in the order they were sent: who waited for whom, with the keys of the run.
// The work refers to `run`, which must live as long.
sim::EngineWork work_of(const RecordedRun& run);

struct Latency {
  double ttft_p50_ms = 0, tpot_p50_ms = 0;
  int64_t requests = 0, steps = 0;
};
Latency measured_latency(const RecordedRun& run);
// `own_beliefs`: the scheduler plans by what it came to plan by in the run; otherwise it learns from the
// simulated steps. Errors: what run_engine refuses; kInvalidData when an invariant of the simulated run does
// not hold.
Result<Latency> simulated_latency(const RecordedRun& run, const FittedCosts& costs, bool own_beliefs);

struct SimulatedRound {
  Latency measured;
  Latency own;         // simulated, with the costs of this run
  Latency other;       // with those of the round before (of the last, in the first)
  Latency calibrated;  // with the engine's start-up costs, nothing between steps
  FittedCosts costs;
  int64_t plans = 0;  // planned again, identically, by a fresh scheduler
};
Result<std::vector<SimulatedRound>> compare_rounds(const std::vector<RecordedRun>& runs);
// Medians over the rounds, ratios simulated to measured.
nlohmann::ordered_json to_json(const std::vector<SimulatedRound>& rounds);
std::string to_table(const std::vector<SimulatedRound>& rounds);
// What `deepinfer simulate --costs` reads.
nlohmann::ordered_json costs_json(const FittedCosts& costs);

}  // namespace deepinfer
