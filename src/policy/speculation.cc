// The switch has hysteresis in both directions: patience before drafting stops, a margin and rare trials
// before it comes back.
#include "policy/speculation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace deepinfer::policy {

const char* name(SpeculationMode mode) {
  switch (mode) {
    case SpeculationMode::kOff:
      return "off";
    case SpeculationMode::kFixed:
      return "fixed";
    case SpeculationMode::kDynamic:
      return "dynamic";
    case SpeculationMode::kLane:
      return "lane";
  }
  return "?";
}
const char* name(StateOrigin origin) {
  switch (origin) {
    case StateOrigin::kCold:
      return "cold";
    case StateOrigin::kHit:
      return "hit";
    case StateOrigin::kHandedOver:
      return "handed_over";
    case StateOrigin::kResumed:
      return "resumed";
  }
  return "?";
}
const char* name(BudgetReason reason) {
  switch (reason) {
    case BudgetReason::kModeOff:
      return "mode_off";
    case BudgetReason::kFixedDepth:
      return "fixed_depth";
    case BudgetReason::kNothingToVerify:
      return "nothing_to_verify";
    case BudgetReason::kNoCurve:
      return "no_curve";
    case BudgetReason::kBestTotal:
      return "best_total";
    case BudgetReason::kDoesNotPay:
      return "does_not_pay";
    case BudgetReason::kTrial:
      return "trial";
    case BudgetReason::kLaneRule:
      return "lane_rule";
  }
  return "?";
}

Status validate(const SpeculationConfig& c) {
  if (c.drafts < 1 || c.drafts > kMaxDrafts)
    return error(Code::kInvalidConfig, "speculation: drafts must be 1 to {}, not {}", kMaxDrafts, c.drafts);
  if (c.mode == SpeculationMode::kFixed && (c.fixed < 0 || c.fixed > c.drafts))
    return error(Code::kInvalidConfig,
                 "speculation: a fixed depth must be 0 to {} (the drafts of a block), not {}", c.drafts,
                 c.fixed);
  if (!(c.lane.row_share >= 0) || !(c.lane.dead_below >= 0 && c.lane.dead_below <= 1))
    return error(Code::kInvalidConfig,
                 "speculation: row_share must not be negative and dead_below must be 0 to 1, not {} and {}",
                 c.lane.row_share, c.lane.dead_below);
  if (c.patience < 1 || c.trial_after < 1 || c.trial_most < c.trial_after || c.trial_requests < 1 ||
      !(c.gain >= 0) || !(c.return_gain >= c.gain))
    return error(Code::kInvalidConfig,
                 "speculation: patience, trial_after and trial_requests must be at least 1, trial_most at "
                 "least trial_after, "
                 "gain not negative and return_gain at least gain");
  if (c.calibration.positions != c.drafts)
    return error(Code::kInvalidConfig, "speculation: calibration has {} positions for {} drafts",
                 c.calibration.positions, c.drafts);
  return {};
}

Result<SpeculationState> make_speculation(const SpeculationConfig& config) {
  DI_TRY(validate(config));
  SpeculationState s;
  s.config = config;
  s.calibration = make_calibration(config.calibration);
  s.mean_survival.assign(static_cast<size_t>(config.drafts), 1.0);
  s.next.resize(static_cast<size_t>(config.drafts));
  s.drift.assign(static_cast<size_t>(config.drafts), 0.0);
  s.counters.position.resize(static_cast<size_t>(config.drafts));
  s.trial_in = config.trial_after;
  return s;
}

std::vector<double> survivals_of(const SpeculationState& s, std::span<const float> logits) {
  std::vector<double> out;
  for (size_t k = 0; k < logits.size(); ++k)
    out.push_back(confidence_of(
        logits[k], s.calibration.temperature[std::min(k, s.calibration.temperature.size() - 1)]));
  survivals(out, out);
  return out;
}

// ---- decision

namespace {

constexpr int64_t kKnown = 8;       // rounds without history before their mean stands for the next one
constexpr double kKnownPairs = 24;  // pairs of rounds before one predicts the other
constexpr int64_t kFreshFor = 2;    // decisions a round speaks for

const LatestRound* fresh_round(const SpeculationState& s, SeqId seq) {
  auto it = s.latest.find(seq);
  bool fresh = it != s.latest.end() && s.counters.budgets - it->second.at < kFreshFor;
  return fresh ? &it->second : nullptr;
}

// Survivals expected of a request's next round, from earlier rounds only. Of a request without a recent one
// the mean of such rounds is expected; as long as that is unknown, everything.
void expected_survivals(const SpeculationState& s, SeqId seq, std::vector<double>* out) {
  const LatestRound* last = fresh_round(s, seq);
  double before = 1;
  for (size_t k = 0; k < out->size(); ++k) {
    double v = s.judged < kKnown ? 1.0 : s.mean_survival[k];
    if (last != nullptr) {
      const RoundToRound& p = s.next[k];
      double x = last->alive[k], spread = p.xx - p.x * p.x / std::max(p.n, 1.0);
      double slope = spread > 1e-6 * p.n ? std::clamp((p.xy - p.x * p.y / p.n) / spread, 0.0, 1.0) : 0.0;
      v = p.n < kKnownPairs ? x : p.y / p.n + slope * (x - p.x / p.n);
    }
    before = std::clamp(v, 0.0, before);
    (*out)[k] = before;
  }
}

// What of the promises was kept so far.
double yield_of(const SpeculationState& s) {
  constexpr double kPrior = 32;
  return std::clamp((s.kept + kPrior) / (s.promised + kPrior), 0.25, 2.0);
}

std::vector<double> expected_survivals(const SpeculationState& s, std::span<const BudgetRequest> requests) {
  std::vector<double> all, own(static_cast<size_t>(s.config.drafts));
  double yield = s.config.mode == SpeculationMode::kDynamic ? yield_of(s) : 1;
  for (const BudgetRequest& r : requests) {
    expected_survivals(s, r.seq, &own);
    int cap = std::clamp(r.cap, 0, s.config.drafts);
    for (int k = 0; k < cap; ++k) all.push_back(std::min(1.0, own[static_cast<size_t>(k)] * yield));
  }
  return all;
}

StepCost cost_of(const SpeculationState& s) {
  return {&s.verify, &s.draft, &s.verify_refinement, &s.draft_refinement, 0};
}

// A draft is worth its row if it survives more often than the step's rate times the row's time. Where rows up
// to the next launch are free, or the curve is a staircase, the total alone decides.
double row_must_survive(const BudgetInput& in, const StepCost& cost, const BudgetChoice& best) {
  if (best.drafts == 0 || in.base_rows + best.drafts <= cost.verify->staircase_rows) return 0;
  double row =
      (step_ns(cost, in.base_rows + best.drafts, in.drafting) - step_ns(cost, in.base_rows, in.drafting)) /
      static_cast<double>(best.drafts);
  return row * best.tokens_per_ns();
}

// The draft pass of a trial is spent anyway: verify what is best after it, and at least one per request.
void decide_trial(const SpeculationState& s, const std::vector<BudgetRequest>& askers, bool known,
                  BudgetInput in, BudgetDecision* d) {
  d->reason = BudgetReason::kTrial;
  auto all = static_cast<int64_t>(askers.size());
  d->ask = std::min(all, s.config.trial_requests);
  d->ask_first = d->ask < all ? s.counters.trials * d->ask % all : 0;
  std::vector<BudgetRequest> asked;
  for (int64_t i = 0; i < d->ask; ++i) asked.push_back(askers[static_cast<size_t>((d->ask_first + i) % all)]);
  std::vector<double> expected = expected_survivals(s, asked);
  in.survivals = expected;
  in.drafting = d->ask;
  StepCost with = cost_of(s), without = with;
  without.draft = nullptr;
  BudgetChoice after = best_budget(in, without);
  d->tokens = after.tokens;
  d->total = std::max(after.drafts, d->ask);
  d->ns = step_ns(with, in.base_rows + d->total, d->ask);
  if (known)
    d->promise = (value_of(in, without, d->total).tokens - static_cast<double>(in.deciding)) / yield_of(s);
}

BudgetDecision decide_dynamic(const SpeculationState& s, const std::vector<BudgetRequest>& askers,
                              const BudgetInput& in) {
  BudgetDecision d;
  d.ask = static_cast<int64_t>(askers.size());
  StepCost with = cost_of(s), without = with;
  without.draft = nullptr;
  BudgetChoice best = best_budget(in, with);
  d.plain_ns = step_ns(without, in.base_rows, 0);
  d.tokens = best.tokens;
  d.ns = best.ns;
  double plain = static_cast<double>(in.deciding) / d.plain_ns;
  double must = plain * (1 + (s.on ? s.config.gain : s.config.return_gain)) * s.slower;
  d.losing = best.drafts == 0 || best.tokens_per_ns() <= must;
  auto room = static_cast<int64_t>(in.survivals.size());
  bool known = s.judged >= kKnown || s.next[0].n >= kKnownPairs;
  if (!d.losing) {
    d.reason = BudgetReason::kBestTotal;
    d.draft = true;
    d.dead_below = known ? row_must_survive(in, with, best) : 0;
    // With a threshold of its own no draft needs a total: what this round's confidences say of it counts.
    d.total = d.dead_below > 0 ? room : best.drafts;
    if (known) d.promise = (best.tokens - static_cast<double>(in.deciding)) / yield_of(s);
  } else if (s.idle + 1 >= s.trial_in) {
    d.draft = true;
    decide_trial(s, askers, known, in, &d);
  } else {
    d.reason = BudgetReason::kDoesNotPay;
  }
  return d;
}

}  // namespace

BudgetDecision decide_drafts(const SpeculationState& s, const DraftQuery& q) {
  BudgetDecision d;
  std::vector<BudgetRequest> askers;
  std::copy_if(q.requests.begin(), q.requests.end(), std::back_inserter(askers),
               [](const BudgetRequest& r) { return r.cap > 0; });
  d.ask = static_cast<int64_t>(askers.size());
  std::vector<double> expected = expected_survivals(s, askers);
  auto requests = static_cast<int64_t>(q.requests.size());
  int64_t room = static_cast<int64_t>(expected.size());
  // Prompt rows are work that is done whether drafts are or not: a token is worth what it costs in a step of
  // its own kind. Their time in the denominator would make any draft look cheap.
  bool dynamic = s.config.mode == SpeculationMode::kDynamic;
  BudgetInput in{(dynamic ? 0 : q.other_rows) + requests, requests, d.ask, expected};
  if (s.config.mode == SpeculationMode::kOff) return d;
  if (room == 0) {
    d.reason = BudgetReason::kNothingToVerify;
    return d;
  }
  switch (s.config.mode) {
    case SpeculationMode::kOff:
      return d;
    case SpeculationMode::kFixed:
      d.reason = BudgetReason::kFixedDepth;
      for (const BudgetRequest& r : q.requests) d.total += std::clamp(r.cap, 0, s.config.fixed);
      break;
    case SpeculationMode::kLane:
      d.reason = BudgetReason::kLaneRule;
      d.total = lane_budget(in, s.config.lane).drafts;
      d.dead_below = s.config.lane.dead_below;
      break;
    case SpeculationMode::kDynamic:
      if (s.verify.empty()) {
        d.reason = BudgetReason::kNoCurve;
        d.total = room;
        break;
      }
      return decide_dynamic(s, askers, in);
  }
  d.draft = d.total > 0;
  return d;
}

// ---- events

namespace {

constexpr double kRecent = 0.02;      // weight of a new observation in the recent means
constexpr double kRecentTrial = 0.1;  // of a trial's requests together: trials are rare
constexpr double kPairDecay = 0.998, kPromiseDecay = 0.98, kSlower = 0.05;
constexpr double kOriginDecay = 0.995;
constexpr double kOriginTrials = 50;  // drafts of an origin before its acceptance is judged

void judge_origins(SpeculationState* s) {
  const OriginCounters& cold = s->origins[static_cast<int>(StateOrigin::kCold)];
  if (cold.drafts < kOriginTrials) return;
  double reference = cold.accepted / cold.drafts;
  for (int o = 1; o < kOrigins; ++o) {
    const OriginCounters& c = s->origins[o];
    bool alarm = c.drafts >= kOriginTrials && c.accepted / c.drafts < reference / 2;
    if (alarm && !s->origin_alarm[o]) ++s->counters.origin_alarms;
    s->origin_alarm[o] = alarm;
  }
}

void judge_drift(SpeculationState* s) {
  double sum = 0;
  for (double d : s->drift) sum += std::fabs(d);
  bool drifting = sum / static_cast<double>(s->drift.size()) > s->config.drift_alarm;
  if (drifting && !s->drifting) ++s->counters.drift_alarms;
  s->drifting = drifting;
}

// What a round teaches about rounds to come: either it followed one that was known, or it stands for those of
// which nothing is known. Mixing the two would make the mean that of good moments.
void learn_round(SpeculationState* s, const RequestOutcome& r, std::vector<double> alive, double share) {
  if (const LatestRound* last = fresh_round(*s, r.seq); last != nullptr) {
    for (size_t k = 0; k < alive.size(); ++k) {
      RoundToRound& p = s->next[k];
      double x = last->alive[k], y = alive[k];
      p.n = p.n * kPairDecay + 1;
      p.x = p.x * kPairDecay + x;
      p.y = p.y * kPairDecay + y;
      p.xx = p.xx * kPairDecay + x * x;
      p.xy = p.xy * kPairDecay + x * y;
    }
  } else {
    share = std::max(share, 1.0 / static_cast<double>(++s->judged));
    for (size_t k = 0; k < alive.size(); ++k) s->mean_survival[k] += share * (alive[k] - s->mean_survival[k]);
  }
  s->latest[r.seq] = {std::move(alive), s->counters.budgets};
}

void count_positions(SpeculationState* s, const RequestOutcome& r, const std::vector<double>& alive) {
  s->counters.drafted += static_cast<int64_t>(r.logits.size());
  for (int k = 0; k < std::min(r.verified, s->config.drafts); ++k) {
    auto i = static_cast<size_t>(k);
    PositionCounters& p = s->counters.position[i];
    bool right = k < r.accepted;
    ++p.verified;
    p.accepted += right ? 1 : 0;
    p.predicted += alive[i];
    s->drift[i] += kRecent * (alive[i] - (right ? 1.0 : 0.0) - s->drift[i]);
  }
  s->counters.verified += r.verified;
  s->counters.accepted += r.accepted;
  OriginCounters& o = s->origins[static_cast<int>(r.origin)];
  o.drafts = o.drafts * kOriginDecay + r.verified;
  o.accepted = o.accepted * kOriginDecay + r.accepted;
}

void on_judged(SpeculationState* s, const DraftsJudged& e) {
  std::vector<DraftOutcome> outcomes;
  double accepted = 0;
  double share = s->tried ? kRecentTrial / static_cast<double>(e.requests.size()) : kRecent;
  for (const RequestOutcome& r : e.requests) {
    std::vector<double> alive = survivals_of(*s, r.logits);
    alive.resize(static_cast<size_t>(s->config.drafts), 0.0);
    count_positions(s, r, alive);
    learn_round(s, r, std::move(alive), share);
    accepted += r.accepted;
    outcomes.push_back({r.logits, r.verified, r.accepted});
  }
  if (s->open_promise > 0) {
    s->promised = s->promised * kPromiseDecay + s->open_promise;
    s->kept = s->kept * kPromiseDecay + accepted;
    s->open_promise = 0;
  }
  observe(&s->calibration, outcomes);
  judge_drift(s);
  judge_origins(s);
}

void on_step(SpeculationState* s, const SpeculationStep& e) {
  ++s->counters.steps;
  if (e.drafting > 0) ++s->counters.draft_passes;
  double expected = std::exchange(s->open_ns, 0.0);
  if (e.excluded) return;
  if (expected > 0 && e.drafting > 0)
    s->slower += kSlower * (std::clamp((e.verify_ns + e.draft_ns) / expected, 0.5, 3.0) - s->slower);
  if (!s->verify.empty() && e.rows > 0)
    refine(s->verify, &s->verify_refinement, e.rows, e.experts, e.verify_ns);
  if (!s->draft.empty() && e.drafting > 0) refine(s->draft, &s->draft_refinement, e.drafting, -1, e.draft_ns);
}

void on_adopted(SpeculationState* s, const BudgetDecision& d) {
  ++s->counters.budgets;
  s->counters.last_budget = d.draft ? d.total : 0;
  s->counters.budget_drafts += s->counters.last_budget;
  s->open_promise = d.promise;
  s->open_ns = d.draft ? d.ns : 0;
  switch (d.reason) {
    case BudgetReason::kBestTotal:
      if (!s->on) ++s->counters.switched_on;
      if (s->tried) s->trial_in = std::max(s->trial_in / 2, s->config.trial_after);
      s->on = true;
      s->tried = false;
      s->losing = 0;
      s->idle = 0;
      break;
    case BudgetReason::kDoesNotPay:
      if (s->tried) s->trial_in = std::min(s->trial_in * 2, s->config.trial_most);
      s->tried = false;
      ++s->idle;
      if (s->on && ++s->losing >= s->config.patience) {
        ++s->counters.switched_off;
        s->on = false;
        s->losing = 0;
      }
      break;
    case BudgetReason::kTrial:
      ++s->counters.trials;
      s->tried = true;
      s->idle = 0;
      break;
    default:
      break;
  }
}

}  // namespace

void apply(SpeculationState* s, const SpeculationEvent& event) {
  if (const auto* e = std::get_if<CurvesMeasured>(&event)) {
    s->verify = e->verify;
    s->draft = e->draft;
    s->verify_refinement = start_refinement(s->verify);
    s->draft_refinement = start_refinement(s->draft);
  } else if (const auto* step = std::get_if<SpeculationStep>(&event)) {
    on_step(s, *step);
  } else if (const auto* judged = std::get_if<DraftsJudged>(&event)) {
    on_judged(s, *judged);
  } else if (const auto* adopted = std::get_if<BudgetAdopted>(&event)) {
    on_adopted(s, adopted->decision);
  } else if (const auto* gone = std::get_if<SequenceGone>(&event)) {
    s->latest.erase(gone->seq);
  }
}

}  // namespace deepinfer::policy
