// How many engine instances a pool should have. One signal per pool over its target; up soon, down late and
// in small steps; every answer has a reason. Missing is not zero: without a sample nothing changes, while a
// measured zero lets a pool shrink to its floor. Samples taken while an instance warms up do not count,
// instances that never start do not block, a change by hand is taken as the new base. In advisory mode the
// answer is the same and nothing is to be carried out. Source: serving specification 10.7. Threads: plain
// data, one owner.
#pragma once

#include <cstdint>
#include <variant>

namespace deepinfer::policy {

struct ScalerConfig {
  double target = 1;      // of the signal
  double up_above = 1.1;  // times the target
  double down_below = 0.7;
  int64_t up_after_ns = 30'000'000'000;
  int64_t down_after_ns = 600'000'000'000;
  double most_down = 0.1;  // of the pool, per change
  double most_up = 0.5;    // of the pool, per change: stages, not one leap
  int64_t least = 1;       // instances
  int64_t spare = 1;       // one may fail
  int64_t most = 1 << 20;
  int64_t start_timeout_ns = 600'000'000'000;  // an instance that is not ready by then is not coming
  int64_t stale_ns = 60'000'000'000;           // an older sample is no sample
  bool advisory = true;
};

struct ScalerState {
  ScalerConfig config;
  int64_t ready = 0;    // instances that serve
  int64_t pending = 0;  // ordered and not ready yet
  int64_t pending_since_ns = 0;
  bool has_sample = false;
  double signal = 0;
  int64_t sampled_ns = 0;
  int64_t above_since_ns = -1, below_since_ns = -1;  // -1: it is not
  int64_t samples_ignored = 0;
};

struct ScalerSample {
  int64_t now_ns = 0;
  double signal = 0;  // NaN: could not be measured
  bool warm = true;   // false: an instance was still warming up
};
struct ScalerMembers {  // what the pool says of itself
  int64_t now_ns = 0;
  int64_t ready = 0, pending = 0;
};
struct ScalerChanged {  // a decision was carried out
  int64_t now_ns = 0;
  int64_t desired = 0;
};
using ScalerEvent = std::variant<ScalerSample, ScalerMembers, ScalerChanged>;
void apply(ScalerState* state, const ScalerEvent& event);

enum class ScaleReason {
  kSteady,
  kNoSample,     // missing is not zero: hold
  kStaleSample,  // hold
  kWaitUp,       // above, not long enough
  kWaitDown,     // below, not long enough
  kUp,
  kDown,
  kAtLeast,  // would shrink below the floor
  kAtMost,
  kStarting,    // instances are on their way
  kBelowFloor,  // fewer than the floor serve: up at once
};
const char* name(ScaleReason reason);
struct ScaleDecision {
  ScaleReason reason = ScaleReason::kSteady;
  int64_t desired = 0;
  bool carry_out = false;  // false: steady, or advisory
};
ScaleDecision decide_scale(const ScalerState& state, int64_t now_ns);

}  // namespace deepinfer::policy
