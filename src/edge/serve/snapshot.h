// A value that is replaced as a whole while others read it: who took it keeps what he took. Source: issue
// "the server" 4 (settings that change while the server runs). Threads: any.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

namespace deepinfer {

template <typename T>
class Snapshot {
 public:
  explicit Snapshot(std::shared_ptr<const T> value) : value_(std::move(value)) {}
  std::shared_ptr<const T> get() const {
    std::lock_guard lock(mutex_);
    return value_;
  }
  void set(std::shared_ptr<const T> value) {
    std::lock_guard lock(mutex_);
    value_.swap(value);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const T> value_;
};

}  // namespace deepinfer
