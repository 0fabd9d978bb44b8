// A flag that Ctrl-C (SIGINT) and SIGTERM set, so that a loop can end cleanly between two steps. A second
// signal of the same kind ends the program at once, as if nobody had caught it: a loop that hangs can still
// be stopped. Knows nothing of what is stopped.
#pragma once

#include <atomic>

namespace deepinfer {

// While one lives, the signals set it. One at a time in a process: a second is a programming fault. Create
// and destroy it on the main thread; stop_requested() may be called from any thread and costs one load.
class StopFlag {
 public:
  StopFlag();
  ~StopFlag();  // puts the earlier handlers back
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;

  bool stop_requested() const;
  // The signal that asked, or 0.
  int signal_number() const;
  // The same from inside the program (tests, a shutdown request).
  void request_stop();
};

}  // namespace deepinfer
