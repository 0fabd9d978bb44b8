// The real clock. The only place where time enters the program: rooms that decide get time as an argument.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepinfer {

// Monotonic nanoseconds; differences are durations, the origin means nothing. Any thread; some tens of
// nanoseconds.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Nanoseconds since the Unix epoch, for time stamps that people or other machines read. May jump.
inline int64_t wall_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace deepinfer
