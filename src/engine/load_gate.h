// Between a load of the persistent store that is under way and a forward pass that has begun on what is there
// of it: the pass waits where it needs a layer's part, for a bounded time, and goes on either way. What did
// not come reads as zeros, so that nothing undefined is computed with; who ordered the step throws its result
// away. Knows nothing of requests or of the store. Private to the engine. Source: serving specification 7.7.
// Threads: first() and end() from the store's; need() and whole() from the executor's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

namespace deepinfer {

class LoadGate {
 public:
  // `blocks`: where the load goes, in order. The sources of the cache from number `first_sources` on read
  // bytes [split, end) of each; those before are there when first() is called.
  LoadGate(std::vector<std::span<uint8_t>> blocks, int64_t split, int first_sources)
      : blocks_(std::move(blocks)), split_(split), first_sources_(first_sources) {}

  // The rest is predicted to take so long. It may take twice that and kGraceNs; then it is given up.
  static constexpr int64_t kGraceNs = 5'000'000;
  void first(int64_t rest_ns);
  // Once, also without first(): so many leading blocks are in place; `whole`: everything is. Nothing is
  // written to any block afterwards.
  void end(int64_t blocks, bool whole);
  // Ends the load: end() is called before it returns, or is being called. REQUIRES to be set before need().
  void set_give_up(std::function<void()> give_up) { give_up_ = std::move(give_up); }

  // Before a layer reads what source number `source` has in the blocks.
  void need(int source);
  // Waits for the end as need() does. False: the pass has read zeros, or would.
  bool whole();
  bool lost() const;                                // it has ended, and short
  int64_t waited_ns() const { return waited_ns_; }  // the executor's

 private:
  void wait_for_end();

  const std::vector<std::span<uint8_t>> blocks_;
  const int64_t split_;
  const int first_sources_;
  std::function<void()> give_up_;
  mutable std::mutex mutex_;
  std::condition_variable ended_changed_;
  int64_t limit_ns_ = 0;  // of waiting, on the machine's clock
  bool ended_ = false, whole_ = false;
  int64_t good_blocks_ = 0;
  bool settled_ = false;  // the executor's: what it reads from now on is defined
  int64_t waited_ns_ = 0;
};

}  // namespace deepinfer
