// The hit arithmetic itself is model/sizes.h; here are the choice of boundary and the accounting around it.
#include "policy/hit.h"

#include <algorithm>

#include "base/check.h"
#include "model/sizes.h"

namespace deepinfer::policy {

Status validate(const ReplayRules& rules) {
  if (rules.window_tokens < 1 || rules.backtrack_tokens < 0) {
    return error(Code::kInvalidConfig, "window {} and backtracking {} are no lengths", rules.window_tokens,
                 rules.backtrack_tokens);
  }
  if (rules.keep_tokens < rules.cap_tokens()) {
    return error(
        Code::kInvalidConfig,
        "keep is {} rows, but a window of {} with {} rows of backtracking needs at least {}; raise keep",
        rules.keep_tokens, rules.window_tokens, rules.backtrack_tokens, rules.cap_tokens());
  }
  return Status();
}

const char* name(HitReason reason) {
  switch (reason) {
    case HitReason::kCold:
      return "cold";
    case HitReason::kTooShort:
      return "too_short";
    case HitReason::kSnapshot:
      return "snapshot";
    case HitReason::kReplayed:
      return "replayed";
    case HitReason::kSnapshotLost:
      return "snapshot_lost";
    case HitReason::kExactBackOff:
      return "exact_back_off";
  }
  return "?";
}

HitDecision decide_hit(const HitQuery& query, const ReplayRules& rules) {
  int window = static_cast<int>(rules.window_tokens), back = static_cast<int>(rules.backtrack_tokens);
  int64_t covered = query.state_tokens.empty() ? 0 : INT64_MAX;
  int64_t longest = 0;
  for (int64_t t : query.state_tokens) {
    covered = std::min(covered, std::max<int64_t>(t, 0));
    longest = std::max(longest, t);
  }
  longest = std::min(longest, query.prompt_tokens);
  HitDecision out;
  out.lost_to_missing_blocks = std::max<int64_t>(0, longest - covered);
  covered = std::min(covered, longest);
  int64_t whole = covered / window * window;
  out.lost_to_rounding = covered - whole;
  // A resumed request computes from its old floor on, so blocks past it are of no use to its start.
  int64_t limit = std::min(whole, query.start_limit / window * window);
  std::vector<int64_t> usable;
  for (int64_t s : query.snapshots) {
    if (s > 0 && s <= limit) usable.push_back(s);
  }
  HitPlan plan = plan_hit(query.prompt_tokens, limit, usable, window, back);
  out.lost_to_cap = whole - plan.hit;
  if (whole == 0) return out;
  if (plan.hit == 0) {
    out.reason = HitReason::kTooShort;
    return out;
  }
  bool stored_before = std::find(usable.begin(), usable.end(), plan.reused) != usable.end();
  if (plan.from_snapshot) {
    out.reason = HitReason::kSnapshot;
  } else if (plan.reused > 0 && stored_before) {
    // The replay would begin at a boundary whose window is stored: the same rows, and exact.
    out.reason = HitReason::kSnapshot;
    out.kv_hit_tokens = out.start_tokens = plan.reused;
    out.from_snapshot = true;
    out.lost_to_snapshot = plan.hit - plan.reused;
    return out;
  } else if (query.mode == HitMode::kReplay && plan.reused > 0) {
    out.reason = HitReason::kReplayed;
  } else {
    int64_t best = 0;
    if (query.mode == HitMode::kExact) {
      for (int64_t s : usable) best = s <= plan.hit ? std::max(best, s) : best;
    }
    out.lost_to_snapshot = plan.hit - best;
    out.reason = best > 0 ? HitReason::kExactBackOff : HitReason::kSnapshotLost;
    out.kv_hit_tokens = out.start_tokens = best;
    out.from_snapshot = best > 0;
    return out;
  }
  out.kv_hit_tokens = plan.hit;
  out.start_tokens = plan.reused;
  out.from_snapshot = plan.from_snapshot;
  out.lost_to_snapshot = plan.hit - plan.reused;
  return out;
}

int64_t decoder_floor(int64_t prompt_tokens, int64_t start_tokens, const ReplayRules& rules) {
  return std::max<int64_t>({0, start_tokens, prompt_tokens - rules.keep_tokens});
}

PrefillWork& PrefillWork::operator+=(const PrefillWork& o) {
  none += o.none;
  ordinary += o.ordinary;
  exact += o.exact;
  deepinfer += o.deepinfer;
  return *this;
}

PrefillWork prefill_work(int64_t prompt, int64_t perfect_hit, int64_t start, const WorkRules& rules) {
  DI_CHECK(perfect_hit <= prompt && start <= prompt, "a hit is no longer than its prompt");
  int64_t half = rules.half_layers;
  PrefillWork w;
  w.none = 2 * half * prompt;
  w.ordinary = 2 * half * (prompt - perfect_hit);
  w.exact = half * (prompt - perfect_hit) + half * std::min(rules.exact_rebuild_tokens, prompt);
  w.deepinfer = half * (prompt - start) + half * std::min(rules.keep_tokens, prompt);
  return w;
}

}  // namespace deepinfer::policy
