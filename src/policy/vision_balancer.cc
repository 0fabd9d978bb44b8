// Fewest patches in flight, machine before GPU.
#include "policy/vision_balancer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace deepinfer::policy {

VisionDecision decide_vision(const VisionState& state, std::span<const int64_t> image_patches) {
  VisionDecision out;
  int64_t best_least = 0, best_total = 0;
  for (size_t m = 0; m < state.machines.size(); ++m) {
    const VisionMachine& machine = state.machines[m];
    if (!machine.open || machine.patches_in_flight.empty()) continue;
    const int64_t least =
        *std::min_element(machine.patches_in_flight.begin(), machine.patches_in_flight.end());
    const int64_t total =
        std::accumulate(machine.patches_in_flight.begin(), machine.patches_in_flight.end(), int64_t{0});
    if (out.machine < 0 || least < best_least || (least == best_least && total < best_total)) {
      out.machine = static_cast<int>(m);
      best_least = least;
      best_total = total;
    }
  }
  if (out.machine < 0) return out;
  std::vector<int64_t> load = state.machines[static_cast<size_t>(out.machine)].patches_in_flight;
  std::vector<int> order(image_patches.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return image_patches[static_cast<size_t>(a)] > image_patches[static_cast<size_t>(b)];
  });
  for (int image : order) {
    const size_t gpu = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    const int64_t patches = image_patches[static_cast<size_t>(image)];
    load[gpu] += patches;
    out.places.push_back({image, static_cast<int>(gpu), patches});
  }
  return out;
}

namespace {

struct ApplyVision {
  VisionState* s;
  int64_t& load(int machine, int gpu) const {
    return s->machines[static_cast<size_t>(machine)].patches_in_flight[static_cast<size_t>(gpu)];
  }
  void operator()(const VisionAssigned& e) const {
    for (const VisionPlace& p : e.decision.places) load(e.decision.machine, p.gpu) += p.patches;
  }
  void operator()(const VisionDone& e) const {
    int64_t& l = load(e.machine, e.gpu);
    l -= e.patches;
    DI_CHECK(l >= 0, "patches in flight are given back once");
  }
  void operator()(const VisionOpened& e) const { s->machines[static_cast<size_t>(e.machine)].open = e.open; }
};

}  // namespace

void apply(VisionState* state, const VisionEvent& event) {
  std::visit(ApplyVision{state}, event);
}

}  // namespace deepinfer::policy
