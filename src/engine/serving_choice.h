// The loop's books of one request and of its answers. Private to the serving loop. Threads: the loop thread.
#pragma once

#include <memory>
#include <vector>

#include "engine/serving_loop.h"

namespace deepinfer {

// One answer that the policy knows of.
struct ServingLoop::Choice {
  policy::SeqId seq{};
  Live* live = nullptr;
  int index = 0;
  bool started = false, admitted = false;
  RequestUsage usage;
  RequestTimes times;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

  // With a store: the keys of all full blocks so far, how many of them it was given, and the windows that
  // were captured and not given to it.
  std::vector<policy::BlockKey> keys;
  size_t stored = 0;
  struct Window {
    policy::SnapshotId id{};
    policy::BlockKey key;
    int64_t boundary = 0;
  };
  std::vector<Window> windows;
  int64_t asked_blocks = 0, shared_tokens = 0;  // of the load under way
  std::shared_ptr<LoadGate> gate;               // likewise
  bool window_placed = false;                   // likewise: it was there before the end
  bool comes_back = false;                      // its first step was lost: its hit is decided again
};

// A request with at least one answer to come.
struct ServingLoop::Live {
  RequestId id{};
  Submission submission;
  std::vector<Choice*> running;  // by choice; null: held back, or over
  std::vector<bool> held;        // by choice: waits until the first one's prompt is stored
  int64_t open = 0;
  bool approximate = false;  // the first answer follows from a replayed window
};

}  // namespace deepinfer
