// Which engine runs a prompt. Four lines by context length; engines pull, each within its own quota of
// predicted work per line, and prefixes do not matter, because every engine can read every prefix from the
// store. For comparison: pushed to the least loaded engine, to the one that would finish first given what it
// has cached, or to the longest cached prefix alone. Knows no steps and no stores; work is predicted by the
// caller. Source: serving specification 1.6, 9.2. Threads: plain data, one owner.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "policy/ids.h"
#include "policy/tiers.h"

namespace deepinfer::policy {

enum class PrefillRule {
  kPull,          // tier quotas, no affinity
  kLeastLoad,     // pushed on arrival to the least predicted work
  kAffinity,      // pushed to the engine that would finish it first: its load and its prefix in one unit
  kAffinityOnly,  // pushed to the longest prefix, whatever the load: what goes wrong
};
struct PrefillConfig {
  PrefillRule rule = PrefillRule::kPull;
  TierConfig tiers;
  int64_t read_queue_ns = 2'000'000'000;  // an engine that waits longer for its reads is second choice
  double ranks = 1;                       // of an engine, that share its work
  double most_outstanding_ns = 0;         // takes nothing beyond it; 0: the tier quotas alone
};

// A waiting request, by the caller's handle: a small number that it may use again once the request left.
struct PrefillWaiting {
  SeqId seq{};
  QueueKey key;
  int tier = -1;  // -1: the handle is free
  int64_t arrived_ns = 0;
  double work_ns = 0;
};
struct PrefillEngine {
  std::array<double, kTiers> used_ns{};  // predicted work pulled and not yet run
  double total_ns = 0;
  int64_t read_queue_ns = 0;
  int64_t requests = 0;
  bool open = true;
};
struct PrefillBalancerState {
  PrefillConfig config;
  std::array<FairQueue, kTiers> queues;
  std::array<double, kTiers> queued_ns{};
  std::vector<PrefillWaiting> waiting;
  std::vector<PrefillEngine> engines;
  uint64_t arrivals = 0;
};
PrefillBalancerState make_prefill_balancer(const PrefillConfig& config, int engines);

struct PrefillArrived {
  SeqId seq{};
  uint32_t handle = 0;
  TenantId tenant{};
  double weight = 1;
  int priority = 0;
  int64_t now_ns = 0;
  int64_t total_tokens = 0;  // hit and new: decides the line
  double work_ns = 0;        // predicted cost of what is not cached
};
struct PrefillPulled {  // adopts decide_pull, or carries out decide_push
  int engine = 0;
  uint32_t handle = 0;
};
struct PrefillRan {  // a chunk was run, or the rest of a request will not be
  int engine = 0, tier = 0;
  double work_ns = 0;
  bool finished = false;
};
struct PrefillCancelled {  // while it waited
  uint32_t handle = 0;
};
struct PrefillEngineReport {
  int engine = 0;
  int64_t read_queue_ns = 0;
  bool open = true;
};
using PrefillEvent =
    std::variant<PrefillArrived, PrefillPulled, PrefillRan, PrefillCancelled, PrefillEngineReport>;
void apply(PrefillBalancerState* state, const PrefillEvent& event);

enum class PullReason { kPulled, kNothingWaits, kQuota, kClosed, kReadsBusy };
const char* name(PullReason reason);
struct PullDecision {
  PullReason reason = PullReason::kNothingWaits;
  uint32_t handle = 0;
  int tier = -1;
};
PullDecision decide_pull(const PrefillBalancerState& state, int engine, int64_t now_ns);

// For the rules that push: what each engine would need for this request, given what it has cached.
struct PushOffer {
  double work_ns = 0;
  int64_t hit_tokens = 0;
};
// -1: no engine is open. REQUIRES one offer per engine.
int decide_push(const PrefillBalancerState& state, std::span<const PushOffer> offers);

// Predicted work waiting in a line, and in all.
double queued_ns(const PrefillBalancerState& state);

}  // namespace deepinfer::policy
