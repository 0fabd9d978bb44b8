// Whether to draft at all, and how many drafts the next step verifies: the running policy over
// verify_budget.h and calibration.h. It learns step times and acceptance from finished steps, decides the
// total from confidences of earlier rounds, stops drafting when that does not pay and tries again later.
// Knows no tokens and no clock. With the target's own draw deciding (shared noise) no decision of this file
// can change an answer. Source: serving specification 4; DSpark (arXiv 2607.05147). Threads: plain data, one
// owner.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "policy/calibration.h"
#include "policy/ids.h"
#include "policy/verify_budget.h"

namespace deepinfer::policy {

enum class SpeculationMode : uint8_t {
  kOff,
  kFixed,    // every request verifies `fixed` drafts
  kDynamic,  // by measured step time and calibrated survival
  kLane,     // linear row cost and a cut of dead rows (small machines; no measurement needed)
};
const char* name(SpeculationMode mode);

struct SpeculationConfig {
  SpeculationMode mode = SpeculationMode::kDynamic;
  int drafts = 5;  // of a block; 1 .. kMaxDrafts
  int fixed = 5;   // kFixed; at most `drafts`
  LaneRule lane;
  CalibrationConfig calibration;
  // Every step drafts only if that is expected to win by `gain`: expectations are noisy, and of those near
  // nothing the too hopeful ones would be chosen. After `patience` decisions in a row that it does not,
  // speculation counts as switched off, and comes back when it is expected to win by `return_gain`. A step
  // that tries comes after `trial_after` decisions without drafts: twice as many after a trial that led to
  // nothing, up to `trial_most`, half as many after one that did. It asks at most `trial_requests`, others
  // each time: drafts and rows for a large batch would cost a whole step.
  int patience = 8;
  double gain = 0.02, return_gain = 0.03;
  int64_t trial_after = 32, trial_most = 1024, trial_requests = 8;
  double drift_alarm = 0.15;  // predicted minus actual survival, mean over positions, absolute
};
inline constexpr int kMaxDrafts =
    5;  // five noise tokens feed the block; six and more need another checkpoint
// kInvalidConfig names the field and the rule.
Status validate(const SpeculationConfig& config);

// Where a request's window came from: a broken draft ring changes no text and shows only in its acceptance.
enum class StateOrigin : uint8_t { kCold, kHit, kHandedOver, kResumed };
inline constexpr int kOrigins = 4;
const char* name(StateOrigin origin);

// ---- events

struct CurvesMeasured {  // at start-up; empty curves: nothing is known, verify everything
  RowCurve verify, draft;
};
struct SpeculationStep {  // a finished step
  int64_t rows = 0;
  double experts = -1;  // distinct, all layers; < 0: not counted
  double verify_ns = 0;
  int64_t drafting = 0;  // requests in the draft pass; 0: none ran
  double draft_ns = 0;
  bool excluded = false;  // prompt rows in it, moved weights, or a stall: says nothing about the curve
};
struct RequestOutcome {
  SeqId seq{};
  StateOrigin origin = StateOrigin::kCold;
  std::vector<float> logits;  // of the confidence head, all drafts
  int verified = 0, accepted = 0;
};
struct DraftsJudged {  // of one finished step
  std::vector<RequestOutcome> requests;
};
struct SequenceGone {
  SeqId seq{};
};

// ---- decision

struct BudgetRequest {
  SeqId seq{};
  int cap = 0;  // most drafts this request may verify: left tokens - 1, blocks, grammar
};
struct DraftQuery {
  int64_t other_rows = 0;  // prompt rows of the step
  std::span<const BudgetRequest> requests;
};
enum class BudgetReason : uint8_t {
  kModeOff,
  kFixedDepth,
  kNothingToVerify,  // no request may take a draft
  kNoCurve,          // step times unknown: everything
  kBestTotal,        // the total with the most expected tokens per second
  kDoesNotPay,       // drafting is switched off for now
  kTrial,            // switched off, but this step tries
  kLaneRule,
};
const char* name(BudgetReason reason);
struct BudgetDecision {
  BudgetReason reason = BudgetReason::kModeOff;
  bool draft = false;  // run the draft pass
  // For whom: so many of the requests with a cap, the first of them counted among those; past the last begin
  // anew.
  int64_t ask = 0, ask_first = 0;
  int64_t total = 0;  // drafts to verify, to be shared by choose_lengths(); never more than the sum of caps
  double dead_below = 0;
  double tokens = 0, ns = 0;  // expected, with drafts
  double promise = 0;         // drafts expected to be accepted, before what earlier promises were worth
  double plain_ns = 0;        // expected without: R tokens
  bool losing = false;        // drafting is expected to lose
};
struct BudgetAdopted {
  BudgetDecision decision;
};

using SpeculationEvent =
    std::variant<CurvesMeasured, SpeculationStep, DraftsJudged, BudgetAdopted, SequenceGone>;

// ---- state

struct OriginCounters {
  double drafts = 0, accepted = 0;  // decaying, so that an alarm can go away
};
struct PositionCounters {
  int64_t verified = 0, accepted = 0;
  double predicted = 0;  // sum of survivals at decision time over verified drafts
};
struct SpeculationCounters {
  int64_t drafted = 0, verified = 0, accepted = 0, steps = 0, draft_passes = 0;
  int64_t switched_off = 0, switched_on = 0, trials = 0, drift_alarms = 0, origin_alarms = 0;
  int64_t budgets = 0, budget_drafts = 0, last_budget = 0;  // decisions, drafts they granted, the last one's
  std::vector<PositionCounters> position;
};

// What one round says of the next. Confidences of neighbouring rounds are alike, but a good round is followed
// by a worse one on average: taken as they are they promise too much.
struct RoundToRound {  // decaying sums over pairs of a request's neighbouring rounds, one draft position
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
};
struct LatestRound {
  std::vector<double> alive;  // survivals
  int64_t at = 0;             // decisions adopted until then
};

struct SpeculationState {
  SpeculationConfig config;
  RowCurve verify, draft;
  CurveRefinement verify_refinement, draft_refinement;
  CalibrationState calibration;
  std::map<SeqId, LatestRound> latest;   // each request's last judged round
  std::vector<RoundToRound> next;        // per position
  std::vector<double> mean_survival;     // recent, of rounds about which nothing was known before
  int64_t judged = 0;                    // outcomes in it
  double promised = 0, kept = 0;         // drafts expected to be accepted, and accepted; decaying
  double open_promise = 0, open_ns = 0;  // of the decision that is being carried out
  double slower = 1;                     // steps with drafts, against what was expected of them; recent
  bool on = true;
  bool tried = false;              // the last draft pass was a trial
  int losing = 0;                  // decisions in a row
  int64_t idle = 0, trial_in = 0;  // decisions since the last draft pass; when to try
  std::vector<double> drift;       // predicted minus actual, recent, per position
  bool drifting = false;
  OriginCounters origins[kOrigins];
  bool origin_alarm[kOrigins] = {false, false, false, false};
  SpeculationCounters counters;
};

Result<SpeculationState> make_speculation(const SpeculationConfig& config);
BudgetDecision decide_drafts(const SpeculationState& state, const DraftQuery& query);
// Survival of a request's drafts of this round, calibrated.
std::vector<double> survivals_of(const SpeculationState& state, std::span<const float> logits);
void apply(SpeculationState* state, const SpeculationEvent& event);

}  // namespace deepinfer::policy
