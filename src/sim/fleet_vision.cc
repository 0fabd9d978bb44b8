// Vision machines: all images of a request on one of them, each on the GPU the balancer says, encoded in the
// order they came; then the request lines up for its prompt.
#include <algorithm>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

}  // namespace

int64_t Fleet::encode_ns(int64_t patches) const {
  return static_cast<int64_t>(config_.vision.fixed_ns +
                              static_cast<double>(patches) / config_.vision.patches_per_s * 1e9);
}

// How long a request's images would take if they were placed now; a second, to look again, if nobody is open.
int64_t Fleet::vision_wait_ns(const std::vector<int64_t>& patches) const {
  const policy::VisionDecision d = policy::decide_vision(vision_, patches);
  if (d.machine < 0) return 1'000'000'000;
  std::vector<int64_t> free = gpu_free_ns_[at(d.machine)];
  int64_t last = now_;
  for (const policy::VisionPlace& p : d.places) {
    free[at(p.gpu)] = std::max(free[at(p.gpu)], now_) + encode_ns(p.patches);
    last = std::max(last, free[at(p.gpu)]);
  }
  return last - now_;
}

// Part of the measured time.
double Fleet::measured_part(int64_t from_ns, int64_t upto_ns) const {
  return static_cast<double>(std::max<int64_t>(0, std::min(upto_ns, end_ns_) - std::max(from_ns, warm_ns_)));
}

void Fleet::place_images(uint32_t slot) {
  Seeing& s = seeing_.at(slot);
  const policy::VisionDecision d = policy::decide_vision(vision_, s.patches);
  s.machine = d.machine;
  s.left = static_cast<int>(s.patches.size());
  if (d.machine < 0) return;  // until one is repaired
  policy::apply(&vision_, policy::VisionAssigned{d});
  for (const policy::VisionPlace& p : d.places) {
    int64_t& free = gpu_free_ns_[at(d.machine)][at(p.gpu)];
    const int64_t begin = std::max(free, now_);
    free = begin + encode_ns(p.patches);
    busy_vision_ns_ += measured_part(begin, free);
    if (free_images_.empty()) {
      free_images_.push_back(static_cast<uint32_t>(images_.size()));
      images_.emplace_back();
    }
    const uint32_t i = free_images_.back();
    free_images_.pop_back();
    Image& image = images_[i];
    image = {slot, s.generation, image.life, d.machine, p.gpu, p.patches, begin, free};
    events_.push(free, kSeen, i, image.life);
  }
}

// An image is encoded, or its machine has failed.
void Fleet::release_image(uint32_t i) {
  Image& image = images_[i];
  policy::apply(&vision_, policy::VisionDone{image.machine, image.gpu, image.patches});
  image.machine = -1;
  ++image.life;
  free_images_.push_back(i);
}

void Fleet::seen(uint32_t i) {
  const Image image = images_[i];
  release_image(i);
  if (measuring() && now_ <= end_ns_) {
    ++out_.images;
    out_.patches += image.patches;
  }
  const auto it = seeing_.find(image.slot);
  if (it == seeing_.end() || it->second.generation != image.generation || --it->second.left > 0) return;
  const int engine = it->second.engine;
  if (live_[image.slot].counted) out_.vision_ns.add(now_ - live_[image.slot].arrived_ns);
  seeing_.erase(it);
  line_up(image.slot, engine, 0);
  offer_work();
}

// What its GPUs held is lost, and with it what they had finished for requests that are not complete.
void Fleet::fail_vision(int machine) {
  policy::apply(&vision_, policy::VisionOpened{machine, false});
  for (uint32_t i = 0; i < images_.size(); ++i) {
    if (images_[i].machine != machine) continue;
    busy_vision_ns_ -= measured_part(std::max(images_[i].begin_ns, now_), images_[i].end_ns);
    release_image(i);
  }
  for (auto& [slot, s] : seeing_) {
    if (s.machine != machine) continue;
    ++out_.failed_over;
    place_images(slot);
  }
}

void Fleet::repair_vision(int machine) {
  policy::apply(&vision_, policy::VisionOpened{machine, true});
  std::fill(gpu_free_ns_[at(machine)].begin(), gpu_free_ns_[at(machine)].end(), now_);
  for (auto& [slot, s] : seeing_) {
    if (s.machine < 0) place_images(slot);
  }
}

// Seconds of work in flight per GPU that is there.
double Fleet::vision_queued_s() const {
  double patches = 0, gpus = 0;
  for (const policy::VisionMachine& m : vision_.machines) {
    if (!m.open) continue;
    gpus += static_cast<double>(m.patches_in_flight.size());
    for (int64_t p : m.patches_in_flight) patches += static_cast<double>(p);
  }
  return gpus > 0 ? patches / config_.vision.patches_per_s / gpus : 0;
}

}  // namespace deepinfer::sim
