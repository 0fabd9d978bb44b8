// The switch has hysteresis in both directions: patience before drafting stops, a margin and rare trials
// before it comes back.
#include "policy/speculation.h"

#include <algorithm>
#include <cmath>

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
  if (c.patience < 1 || c.trial_after < 1 || c.trial_most < c.trial_after || !(c.return_gain >= 0))
    return error(
        Code::kInvalidConfig,
        "speculation: patience and trial_after must be at least 1, trial_most at least trial_after and "
        "return_gain not negative");
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

// What the total may look at: each request's last judged round; a request without one counts as certain,
// except while drafting is off, when nobody has a recent one and the recent mean stands in.
std::vector<double> stale_survivals(const SpeculationState& s, const DraftQuery& q) {
  std::vector<double> all, own(static_cast<size_t>(s.config.drafts));
  for (const BudgetRequest& r : q.requests) {
    auto it = s.latest.find(r.seq);
    if (!s.on) {
      own = s.mean_survival;
    } else if (it == s.latest.end()) {
      std::fill(own.begin(), own.end(), 1.0);
    } else {
      survivals(it->second, own);
    }
    int cap = std::clamp(r.cap, 0, s.config.drafts);
    all.insert(all.end(), own.begin(), own.begin() + cap);
  }
  return all;
}

StepCost cost_of(const SpeculationState& s) {
  return {&s.verify, &s.draft, &s.verify_refinement, &s.draft_refinement, 0};
}

BudgetDecision decide_dynamic(const SpeculationState& s, const BudgetInput& in) {
  BudgetDecision d;
  StepCost with = cost_of(s), without = with;
  without.draft = nullptr;
  BudgetChoice best = best_budget(in, with);
  d.plain_ns = step_ns(without, in.base_rows, 0);
  d.tokens = best.tokens;
  d.ns = best.ns;
  double plain = static_cast<double>(in.deciding) / d.plain_ns;
  d.losing = best.drafts == 0 || best.tokens_per_ns() <= plain;
  bool pays = s.on ? !d.losing || s.losing + 1 < s.config.patience
                   : best.drafts > 0 && best.tokens_per_ns() > plain * (1 + s.config.return_gain);
  if (pays && best.drafts > 0) {
    d.reason = BudgetReason::kBestTotal;
    d.draft = true;
    d.total = best.drafts;
    return d;
  }
  if (!s.on && s.off_for + 1 >= s.trial_in) {
    // The draft pass of a trial is spent anyway: verify what is best after it, and at least one per request.
    d.reason = BudgetReason::kTrial;
    d.draft = true;
    d.total = std::max(best_budget(in, without).drafts,
                       std::min(in.deciding, static_cast<int64_t>(in.survivals.size())));
    return d;
  }
  d.reason = BudgetReason::kDoesNotPay;
  return d;
}

}  // namespace

BudgetDecision decide_drafts(const SpeculationState& s, const DraftQuery& q) {
  BudgetDecision d;
  std::vector<double> stale = stale_survivals(s, q);
  auto requests = static_cast<int64_t>(q.requests.size());
  int64_t room = static_cast<int64_t>(stale.size());
  BudgetInput in{q.other_rows + requests, requests, requests, stale};
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
      return decide_dynamic(s, in);
  }
  d.draft = d.total > 0;
  return d;
}

// ---- events

namespace {

constexpr double kRecent = 0.02;      // weight of a new observation in the recent means
constexpr double kRecentTrial = 0.2;  // while drafting is off: observations are rare
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

void on_judged(SpeculationState* s, const DraftsJudged& e) {
  std::vector<DraftOutcome> outcomes;
  for (const RequestOutcome& r : e.requests) {
    std::vector<double> alive = survivals_of(*s, r.logits);
    alive.resize(static_cast<size_t>(s->config.drafts), 0.0);
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
    double share = std::max(s->on ? kRecent : kRecentTrial, 1.0 / static_cast<double>(++s->judged));
    for (size_t i = 0; i < s->mean_survival.size(); ++i)
      s->mean_survival[i] += share * (alive[i] - s->mean_survival[i]);
    s->counters.verified += r.verified;
    s->counters.accepted += r.accepted;
    OriginCounters& o = s->origins[static_cast<int>(r.origin)];
    o.drafts = o.drafts * kOriginDecay + r.verified;
    o.accepted = o.accepted * kOriginDecay + r.accepted;
    std::vector<double> confidence;
    for (size_t k = 0; k < r.logits.size(); ++k)
      confidence.push_back(confidence_of(
          r.logits[k], s->calibration.temperature[std::min(k, s->calibration.temperature.size() - 1)]));
    s->latest[r.seq] = std::move(confidence);
    outcomes.push_back({r.logits, r.verified, r.accepted});
  }
  observe(&s->calibration, outcomes);
  judge_drift(s);
  judge_origins(s);
}

void on_step(SpeculationState* s, const SpeculationStep& e) {
  ++s->counters.steps;
  if (e.drafting > 0) ++s->counters.draft_passes;
  if (e.excluded) return;
  if (!s->verify.empty() && e.rows > 0)
    refine(s->verify, &s->verify_refinement, e.rows, e.experts, e.verify_ns);
  if (!s->draft.empty() && e.drafting > 0) refine(s->draft, &s->draft_refinement, e.drafting, -1, e.draft_ns);
}

void on_adopted(SpeculationState* s, const BudgetDecision& d) {
  ++s->counters.budgets;
  s->counters.last_budget = d.draft ? d.total : 0;
  s->counters.budget_drafts += s->counters.last_budget;
  switch (d.reason) {
    case BudgetReason::kBestTotal:
      if (!s->on) {
        ++s->counters.switched_on;
        s->on = true;
        s->trial_in = s->config.trial_after;
      }
      s->losing = d.losing ? s->losing + 1 : 0;
      break;
    case BudgetReason::kDoesNotPay:
      if (s->on) {
        // Below the patience this step merely verifies nothing.
        if (++s->losing < s->config.patience) break;
        ++s->counters.switched_off;
        s->on = false;
        s->losing = 0;
        s->off_for = 0;
        s->latest.clear();
      } else {
        ++s->off_for;
      }
      break;
    case BudgetReason::kTrial:
      ++s->counters.trials;
      s->off_for = 0;
      s->trial_in = std::min(s->trial_in * 2, s->config.trial_most);
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
