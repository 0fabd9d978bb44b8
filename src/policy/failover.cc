// The size rule and the phases of a restart.
#include "policy/failover.h"

#include "base/check.h"

namespace deepinfer::policy {

const char* name(InstancePhase phase) {
  switch (phase) {
    case InstancePhase::kServing:
      return "serving";
    case InstancePhase::kFenced:
      return "fenced";
    case InstancePhase::kLoading:
      return "loading";
    case InstancePhase::kWarming:
      return "warming";
    case InstancePhase::kDown:
      return "down";
  }
  return "?";
}

Resize decide_resize(const ResizeRules& rules, int64_t healthy) {
  Resize out;
  int64_t size = healthy;
  if (size > rules.domain_gpus) size = size / rules.multiple_across * rules.multiple_across;
  out.gpus = size;
  out.slots_per_gpu = rules.most_slots;
  const int64_t slots = rules.most_slots * size;
  out.feasible = size > 0 && slots >= rules.experts;
  out.redundant = out.feasible ? slots - rules.experts : 0;
  out.missing_slots = out.feasible ? 0 : rules.experts - slots;
  return out;
}

InstanceState make_instance(const ResizeRules& rules, int64_t gpus) {
  const Resize size = decide_resize(rules, gpus);
  DI_CHECK(size.feasible, "an instance begins with GPUs that hold every expert");
  InstanceState s;
  s.rules = rules;
  s.gpus = size.gpus;
  s.healthy = gpus;
  s.slots_per_gpu = size.slots_per_gpu;
  s.redundant = size.redundant;
  return s;
}

namespace {

struct ApplyInstance {
  InstanceState* s;
  void operator()(const GpuFailed&) const {
    DI_CHECK(s->healthy > 0, "only a healthy GPU fails");
    --s->healthy;
    ++s->epoch;  // whatever was running or starting is void
    s->phase = InstancePhase::kFenced;
  }
  void operator()(const GpuRepaired&) const { ++s->healthy; }
  void operator()(const RequestsReturned& e) const {
    DI_CHECK(e.count <= s->requests, "requests return once");
    s->requests -= e.count;
  }
  void operator()(const RequestTaken&) const { ++s->requests; }
  void operator()(const RequestOver&) const {
    DI_CHECK(s->requests > 0, "requests end once");
    --s->requests;
  }
  void operator()(const WeightsLoaded&) const {
    if (s->phase == InstancePhase::kLoading) s->phase = InstancePhase::kWarming;
  }
  void operator()(const GraphsWarm&) const {
    if (s->phase == InstancePhase::kWarming) s->phase = InstancePhase::kServing;
  }
};

}  // namespace

void apply(InstanceState* s, const InstanceEvent& event) {
  std::visit(ApplyInstance{s}, event);
  const Resize size = decide_resize(s->rules, s->healthy);
  if (s->phase == InstancePhase::kDown && size.feasible) s->phase = InstancePhase::kFenced;
  if (s->phase == InstancePhase::kFenced && s->requests == 0) {
    s->phase = size.feasible ? InstancePhase::kLoading : InstancePhase::kDown;
    s->gpus = size.feasible ? size.gpus : 0;
    s->slots_per_gpu = size.feasible ? size.slots_per_gpu : 0;
    s->redundant = size.redundant;
  }
}

InstanceDecision decide_instance(const InstanceState& s) {
  InstanceDecision d;
  d.registered = s.phase == InstancePhase::kServing;
  d.return_requests = s.phase == InstancePhase::kFenced ? s.requests : 0;
  d.load_weights = s.phase == InstancePhase::kLoading;
  d.warm_up = s.phase == InstancePhase::kWarming;
  d.size = decide_resize(s.rules, s.healthy);
  return d;
}

}  // namespace deepinfer::policy
