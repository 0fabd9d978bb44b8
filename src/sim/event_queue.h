// The virtual clock's queue: a four-way heap of events by (time, order of insertion), so that equal times are
// served in the order they were scheduled and a run is the same everywhere. Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::sim {

struct SimEvent {
  int64_t at_ns = 0;
  uint32_t order = 0;
  uint16_t kind = 0;
  uint16_t part = 0;
  uint32_t who = 0;
  uint32_t generation = 0;
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  int64_t next_ns() const { return heap_[0].at_ns; }
  const SimEvent& peek() const { return heap_[0]; }
  void push(int64_t at_ns, uint16_t kind, uint32_t who, uint32_t generation = 0, uint16_t part = 0) {
    size_t i = heap_.size();
    SimEvent e{at_ns, order_++, kind, part, who, generation};
    heap_.push_back(e);
    while (i > 0) {
      size_t up = (i - 1) / 4;
      if (!before(e, heap_[up])) break;
      heap_[i] = heap_[up];
      i = up;
    }
    heap_[i] = e;
  }
  SimEvent pop() {
    SimEvent top = heap_[0], last = heap_.back();
    heap_.pop_back();
    const size_t n = heap_.size();
    size_t i = 0;
    while (4 * i + 1 < n) {
      size_t least = 4 * i + 1;
      for (size_t c = least + 1; c < n && c <= 4 * i + 4; ++c) {
        if (before(heap_[c], heap_[least])) least = c;
      }
      if (!before(heap_[least], last)) break;
      heap_[i] = heap_[least];
      i = least;
    }
    if (n > 0) heap_[i] = last;
    return top;
  }

 private:
  // The order wraps after 2^32 events; equal times lie closer together than half of that.
  static bool before(const SimEvent& a, const SimEvent& b) {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : static_cast<int32_t>(a.order - b.order) < 0;
  }
  std::vector<SimEvent> heap_;
  uint32_t order_ = 0;
};

}  // namespace deepinfer::sim
