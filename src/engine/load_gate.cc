// One condition, one limit, and zeros where nothing came.
#include "engine/load_gate.h"

#include <algorithm>
#include <chrono>

#include "host/clock.h"

namespace deepinfer {

void LoadGate::first(int64_t rest_ns) {
  std::lock_guard lock(mutex_);
  limit_ns_ = now_ns() + 2 * std::max<int64_t>(0, rest_ns) + kGraceNs;
}

void LoadGate::end(int64_t blocks, bool whole) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    whole_ = whole;
    good_blocks_ = blocks;
  }
  ended_changed_.notify_all();
}

bool LoadGate::lost() const {
  std::lock_guard lock(mutex_);
  return ended_ && !whole_;
}

void LoadGate::wait_for_end() {
  std::unique_lock lock(mutex_);
  if (ended_) return;
  int64_t begun = now_ns();
  auto ended = [this] { return ended_; };
  std::chrono::nanoseconds left(std::max<int64_t>(0, limit_ns_ - begun));
  if (!ended_changed_.wait_for(lock, left, ended)) {
    lock.unlock();
    give_up_();
    lock.lock();
    // It may have been ending on another thread just then.
    ended_changed_.wait(lock, ended);
  }
  waited_ns_ += now_ns() - begun;
}

void LoadGate::need(int source) {
  if (settled_ || source < first_sources_) return;
  settled_ = true;
  wait_for_end();
  if (whole_) return;
  // Blocks that did arrive may be read by others; the rest is nobody's but this request's.
  for (size_t i = static_cast<size_t>(good_blocks_); i < blocks_.size(); ++i) {
    std::span<uint8_t> rest = blocks_[i].subspan(static_cast<size_t>(split_));
    std::fill(rest.begin(), rest.end(), uint8_t{0});
  }
}

bool LoadGate::whole() {
  wait_for_end();
  return whole_;
}

}  // namespace deepinfer
