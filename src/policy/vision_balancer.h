// Which machine encodes a request's images, and which of its GPUs each image: the machine that has the GPU
// with the fewest patches in flight, then the images, largest first, each on the GPU with the fewest. All
// images of a request stay on one machine, where their embeddings share host memory.
// Source: serving specification 9.1. Threads: plain data, one owner.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace deepinfer::policy {

struct VisionMachine {
  std::vector<int64_t> patches_in_flight;  // per GPU
  bool open = true;
};
struct VisionState {
  std::vector<VisionMachine> machines;
};
struct VisionPlace {
  int image = 0, gpu = 0;
  int64_t patches = 0;
};
struct VisionDecision {
  int machine = -1;                 // -1: no machine is open
  std::vector<VisionPlace> places;  // in the order they were chosen: largest image first
};
VisionDecision decide_vision(const VisionState& state, std::span<const int64_t> image_patches);

struct VisionAssigned {
  VisionDecision decision;
};
struct VisionDone {  // encoded or failed
  int machine = 0, gpu = 0;
  int64_t patches = 0;
};
struct VisionOpened {
  int machine = 0;
  bool open = true;
};
using VisionEvent = std::variant<VisionAssigned, VisionDone, VisionOpened>;
void apply(VisionState* state, const VisionEvent& event);

}  // namespace deepinfer::policy
