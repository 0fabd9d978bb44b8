// `deepinfer bench spec`: what speculation brings: off, fixed depths and the dynamic budget, side by side at
// several loads, alternating in one run. And the published operating points from the model of serving
// specification 4.8. Threads: one caller.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/load_run.h"
#include "base/status.h"
#include "policy/speculation.h"

namespace deepinfer {

struct SpecMode {
  std::string name;  // off, fixed1 .. fixed5, dynamic
  policy::SpeculationMode mode = policy::SpeculationMode::kOff;
  int fixed = 0;
};
// All that a model with blocks of `drafts` can run.
std::vector<SpecMode> spec_modes(int drafts);

struct SpecSample {
  double tokens_per_s = 0;  // of all requests, prompts included
  // Tokens after a request's first over the time after it, all requests together: a request's own rate.
  // Prompt steps of its neighbours count, its own do not.
  double decode_per_s = 0;
  double verified_per_step = 0, accepted_per_step = 0;  // per request and decode step
  // Rows through the model in a step without prompt rows; a draft pass; sampling in a step.
  double forward_ms = 0, draft_ms = 0, sample_ms = 0;
};
struct SpecPoint {
  int64_t concurrency = 0;
  std::string mode;
  SpecSample median;
  std::vector<double> rates;  // tokens/s of every round
  // Against `off`, and for dynamic against the best other mode: the median over rounds of the ratio of rates
  // in one round, and the upper 95 % bound of the loss (1 - ratio) by bootstrap of rounds. 0 rounds: 0. With
  // duels, the latter two are of them alone.
  double against_off = 0, against_best = 0, loss_bound = 0;
  double decode_against_off = 0;  // the same of decode_per_s
  std::string best;               // the other mode with the highest median
  std::vector<double> duel_rates, best_duel_rates;
};

struct SpecOptions {
  std::vector<int64_t> concurrency = {1, 4, 16, 64};
  int rounds = 9;
  // Rounds of dynamic and the best other mode alone behind these, in turn: many short neighbours tell small
  // losses from a machine that wanders.
  int duels = 0;
};
// `make` gives the engine of a mode; it is kept for the whole run and idle while others run. `workload_of`
// gives the work of a concurrency: the same for every mode and round.
Result<std::vector<SpecPoint>> run_spec(
    const std::vector<SpecMode>& modes, const SpecOptions& options,
    const std::function<Result<std::unique_ptr<Engine>>(const SpecMode&)>& make,
    const std::function<Workload(int64_t)>& workload_of, const DriveOptions& drive,
    const std::function<void(const std::string&)>& progress);

// SpecSample::decode_per_s of these requests; 0 if none has a second token.
double decode_rate(const std::vector<RequestRecord>& requests);

// Ratio of paired samples: the median and the upper 95 % bound of 1 - ratio, 2,000 resamples with a fixed
// seed.
struct PairedLoss {
  double median_ratio = 0, loss_bound = 0;
};
PairedLoss paired_loss(const std::vector<double>& mine, const std::vector<double>& other);

// The table of serving specification 4.8 as text, from the same budget search that runs in the engine.
std::string published_points_table();

}  // namespace deepinfer
