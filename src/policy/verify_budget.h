// How many drafts a step verifies and whose: survival products, step time as a function of rows, the total
// that maximises expected tokens per second, and its distribution over requests. The total may only be
// decided from confidences of earlier rounds; the distribution looks at this round's. Knows no model and no
// clock. Source: serving specification 4.2 to 4.5, 4.7, 4.9; DSpark (arXiv 2607.05147). Threads: pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace deepinfer::policy {

// Survival of draft j = product of the confidences up to j. Confidences are clamped to [0, 1], NaN is 0; so
// the result never increases and a global sort respects prefixes.
void survivals(std::span<const double> confidence, std::span<double> out);

// One measured step: what so many rows take, and how many distinct experts they touched (all layers
// together).
struct CurvePoint {
  int64_t rows = 0;
  double ns = 0;
  double experts = 0;
  bool operator==(const CurvePoint&) const = default;
};

// Step time by rows. Up to staircase_rows a step pays for the next point's rows (padded launches); above it
// times are interpolated, and beyond the last point continued with the last slope.
struct RowCurve {
  std::vector<CurvePoint> points;  // rows strictly ascending, ns and experts non-decreasing
  int64_t staircase_rows = 0;
  bool empty() const { return points.empty(); }
};
// Sorts, merges equal rows (the smaller time counts) and makes times non-decreasing. kInvalidArgument: a
// point without rows, or a time that is not positive and finite.
Result<RowCurve> make_curve(std::vector<CurvePoint> points, int64_t staircase_rows);
// Time and expected experts of so many rows; rows 0: nothing. REQUIRES a non-empty curve.
double ns_at(const RowCurve& curve, int64_t rows);
double experts_at(const RowCurve& curve, int64_t rows);
// The rows that are paid for when `rows` are run.
int64_t paid_rows(const RowCurve& curve, int64_t rows);
// The measured point that speaks for `rows`: the first with at least so many, else the last.
size_t bucket_of(const RowCurve& curve, int64_t rows);

// The start-up curve corrected by what steps take at run time.
struct CurveRefinement {
  double all = 1;              // observed / expected, every step
  std::vector<double> bucket;  // the same per measured point; 0: never observed
  double experts = 1;          // observed / expected distinct experts
  double ns_per_expert = 0;    // from the start-up points: time that distinct experts explain beyond rows
};
CurveRefinement start_refinement(const RowCurve& curve);
double refined_ns(const RowCurve& curve, const CurveRefinement& refinement, int64_t rows);
// Takes a step into account. `experts` < 0: not counted. Steps longer than three times the expectation are
// ignored (false).
bool refine(const RowCurve& curve, CurveRefinement* refinement, int64_t rows, double experts, double ns);

// What a step would take: verification by rows, drafting by requests (empty: free), and a factor for the cost
// of variable lengths.
struct StepCost {
  const RowCurve* verify = nullptr;
  const RowCurve* draft = nullptr;
  const CurveRefinement* verify_refinement = nullptr;
  const CurveRefinement* draft_refinement = nullptr;
  double overhead = 0;  // share of the step, only when drafts are verified selectively
};
double step_ns(const StepCost& cost, int64_t rows, int64_t drafting);

struct BudgetInput {
  int64_t base_rows = 0;              // rows that are no drafts: one per deciding request, and prompt rows
  int64_t deciding = 0;               // requests that take a token in this step
  int64_t drafting = 0;               // requests in the draft pass
  std::span<const double> survivals;  // of all drafts that may be verified, in any order
};
struct BudgetChoice {
  int64_t drafts = 0;
  double tokens = 0;  // expected
  double ns = 0;
  double tokens_per_ns() const { return ns > 0 ? tokens / ns : 0; }
};
// The best total over all totals: ties go to fewer drafts, then what the same padded launch carries for
// nothing is added. `early_stop`: the greedy of the paper, which ends at the first addition that does not
// pay; it is needed only when the same round's confidences decide the total.
BudgetChoice best_budget(const BudgetInput& input, const StepCost& cost, bool early_stop = false);
// The same for a given total.
BudgetChoice value_of(const BudgetInput& input, const StepCost& cost, int64_t drafts);

// The small-machine model: a row costs `row_share` of the step's fixed cost, drafts that survive with less
// than `dead_below` are dropped. Returns tokens per fixed step time in `tokens`, ns = 1 + row_share * drafts.
struct LaneRule {
  double row_share = 0.035;
  double dead_below = 0.20;
};
BudgetChoice lane_budget(const BudgetInput& input, const LaneRule& rule);

// One request's drafts of this round: survivals[0, cap) may be verified.
struct DraftRow {
  std::span<const double> survivals;
  int cap = 0;
};
// Gives `total` verifications to the most likely drafts: larger survival first, then the earlier position,
// then the earlier request. Prefixes only; drafts below `dead_below` are never verified. The sum is
// min(total, what may be verified).
std::vector<int> choose_lengths(std::span<const DraftRow> rows, int64_t total, double dead_below = 0);

}  // namespace deepinfer::policy
