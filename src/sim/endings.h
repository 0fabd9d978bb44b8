// Who is to be looked at when a step of a decode group ends: a ring of steps, so that nothing is sorted. What
// was put in last lies in the ring itself, a cache line per step, and older entries in a pool: entering
// touches one line. Threads: one owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::sim {

struct Ending {
  uint32_t step = 0;  // modulo 2^32
  uint32_t slot = 0, generation = 0;
};

class Endings {
 public:
  void push(int64_t step, uint32_t slot, uint32_t generation) {
    put(&ring_[place(step)], {static_cast<uint32_t>(step), slot, generation});
  }
  void clear() {
    ring_.assign(kSteps, Line{});
    pool_.clear();
    free_.clear();
  }
  // Those of `step`, in the order they came; later rounds of the ring stay.
  void take(int64_t step, std::vector<Ending>* out) {
    out->clear();
    Line& newest = ring_[place(step)];
    order_.clear();
    for (int32_t i = newest.older; i >= 0; i = pool_[static_cast<size_t>(i)].older) order_.push_back(i);
    kept_.clear();
    const uint32_t now = static_cast<uint32_t>(step);
    auto sort_out = [&](const Line& line) {
      for (size_t i = 0; i < line.count; ++i)
        (line.entries[i].step == now ? out : &kept_)->push_back(line.entries[i]);
    };
    for (size_t i = order_.size(); i-- > 0;) {
      sort_out(pool_[static_cast<size_t>(order_[i])]);
      free_.push_back(order_[i]);
    }
    sort_out(newest);
    newest = {};
    for (const Ending& e : kept_) put(&newest, e);
  }

 private:
  static constexpr size_t kSteps = 512;
  struct alignas(64) Line {
    std::array<Ending, 4> entries;
    uint32_t count = 0;
    int32_t older = -1;  // in the pool
  };
  static size_t place(int64_t step) { return static_cast<size_t>(step) % kSteps; }
  void put(Line* line, const Ending& e) {
    if (line->count == line->entries.size()) {
      if (free_.empty()) {
        free_.push_back(static_cast<int32_t>(pool_.size()));
        pool_.emplace_back();
      }
      const int32_t i = free_.back();
      free_.pop_back();
      pool_[static_cast<size_t>(i)] = *line;
      line->count = 0;
      line->older = i;
    }
    line->entries[line->count++] = e;
  }
  std::vector<Line> ring_{kSteps};
  std::vector<Line> pool_;
  std::vector<int32_t> free_, order_;
  std::vector<Ending> kept_;
};

}  // namespace deepinfer::sim
