// What becomes of an expert-parallel instance when a GPU fails: it is fenced as a whole, its requests go
// back, and it starts again on the healthy GPUs if they can hold every expert. Moves no weights. Source:
// serving specification 10.6. Threads: plain data, one owner.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace deepinfer::policy {

struct ResizeRules {
  int64_t experts = 384;
  int64_t most_slots = 7;         // per GPU, by memory
  int64_t multiple_across = 8;    // allowed sizes beyond one scale-up domain
  int64_t domain_gpus = 1 << 30;  // any size is allowed up to here
};
struct Resize {
  bool feasible = false;
  int64_t gpus = 0, slots_per_gpu = 0, redundant = 0;
  int64_t missing_slots = 0;  // of an infeasible one
};
// The largest allowed size that the healthy GPUs give.
Resize decide_resize(const ResizeRules& rules, int64_t healthy_gpus);

enum class InstancePhase : uint8_t { kServing, kFenced, kLoading, kWarming, kDown };
const char* name(InstancePhase phase);
struct InstanceState {
  ResizeRules rules;
  InstancePhase phase = InstancePhase::kServing;
  int64_t epoch = 1;  // of everything it sends; receivers drop older ones
  int64_t gpus = 0;   // it runs on
  int64_t healthy = 0;
  int64_t slots_per_gpu = 0, redundant = 0;
  int64_t requests = 0;  // not yet back at the control plane
};
InstanceState make_instance(const ResizeRules& rules, int64_t gpus);

struct GpuFailed {};
struct GpuRepaired {};
struct RequestsReturned {
  int64_t count = 0;
};
struct RequestTaken {};
struct RequestOver {};
struct WeightsLoaded {};
struct GraphsWarm {};
using InstanceEvent = std::variant<GpuFailed, GpuRepaired, RequestsReturned, RequestTaken, RequestOver,
                                   WeightsLoaded, GraphsWarm>;
void apply(InstanceState* state, const InstanceEvent& event);

struct InstanceDecision {
  bool registered = false;      // takes requests
  int64_t return_requests = 0;  // to the control plane, epoch + 1 each
  bool load_weights = false;    // from peers first, then from storage
  bool warm_up = false;
  Resize size;  // to start with
};
InstanceDecision decide_instance(const InstanceState& state);

}  // namespace deepinfer::policy
