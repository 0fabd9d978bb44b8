// Fitting the cost model to measured steps: weighted least squares on relative error with coefficients that
// cannot be negative. At start-up from a grid of dummy steps, later from the last steps run, without ever
// freezing, because a machine drifts. Does not measure and does not run anything.
// Source: serving specification 1.3, 1.9. Threads: pure functions on plain data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/cost_model.h"

namespace deepinfer::policy {

// The columns of one step's cost, summed over its sequences, and what it took.
struct CostSample {
  double rows_squared = 0, rows_context = 0, rows = 0;
  double decoder_sequences = 0, decoder_rows = 0, decoder_rows_context = 0;
  double measured_ns = 0;
};
// Adds one sequence's share of a step. `context` tokens precede the rows; the last decoder_rows of them run
// the decoder half.
void add_rows(CostSample* sample, int64_t rows, int64_t context, int64_t decoder_rows);
double predict_ns(const CostModel& m, const CostSample& sample);

enum class FitReason {
  kFitted,
  kTooFewPoints,
  kErrorTooLarge,
  kNotDue,
  kScaledAfterSlowSteps,
  kScaledBack,  // steps are as fast again as what was fitted says
};
const char* name(FitReason reason);

struct FitDecision {
  FitReason reason = FitReason::kNotDue;
  bool adopt = false;  // use `model` from now on; otherwise keep what there is
  CostModel model;
  double scale = 1;  // of the model over what was fitted
  double median_relative_error = 0;
  // b / 2a: 1 when splitting a prompt does not change its attention total; outside 0.5 .. 2 the fit is
  // suspect.
  double partition_ratio = 0;
};
inline constexpr int kFitMinPoints = 8;
inline constexpr double kFitMaxError = 0.15;

// Fits all samples, each weighted by weight[i] / measured^2 (weights empty: all 1). Columns that are zero in
// every sample keep the value they have in `previous`. Not adopted if the median relative error is above
// `max_error`.
FitDecision fit_cost(std::span<const CostSample> samples, std::span<const double> weights,
                     const CostModel& previous, double max_error = kFitMaxError);

// The running fit. Events: a finished step. Adopting a decision is the event CostAdopted.
struct FitConfig {
  int ring = 512;        // steps remembered
  double decay = 0.995;  // weight of a step relative to the next one
  int refit_every = 256;
  // So many steps in a row, together at least so long, that took so much more than predicted: correct at
  // once. Of short steps more are needed, because what holds up one (a page fault, a clock that rises) holds
  // up its neighbours. As many steps faster by the factor than a corrected model says correct it back.
  double slow_factor = 1.5;
  int slow_steps = 3;
  double slow_ns = 50e6;
};
struct FitState {
  FitConfig config;
  CostModel model;
  std::vector<CostSample> ring;  // oldest at `next` once full
  int next = 0;
  int since_fit = 0;
  double scale = 1;  // of the model over what was fitted: >= 1
  int slow_run = 0, fast_run = 0;
  double slow_least = 0, slow_took_ns = 0;  // measured / predicted, of the run; and its time
  double fast_most = 0;
};
struct StepMeasured {
  CostSample sample;
  bool excluded = false;  // moved weights, compiled or profiled something, or stalled on the host
};
struct CostAdopted {
  CostModel model;
  double scale = 1;  // FitDecision's
};
void apply(FitState* state, const StepMeasured& event);
void apply(FitState* state, const CostAdopted& event);
FitDecision decide_fit(const FitState& state);

}  // namespace deepinfer::policy
