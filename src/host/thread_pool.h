// A team of worker threads for the token step: run one task list, all threads take part, return when all is
// done. Bounded spinning, then sleep. On a machine with several memory nodes the threads form a group per
// node, and a list can say which of its tasks belong to which group. Knows nothing of what it runs. Results
// must not depend on the number of threads: tasks write disjoint memory and never reduce across tasks.
// Threads: run() is called by one thread at a time (the owner of the pool); tasks may not call run().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "host/topology.h"

namespace deepinfer {

class ThreadPool {
 public:
  // threads >= 1, the caller counts as one. pin: bind workers to distinct allowed CPUs when there are enough.
  explicit ThreadPool(int threads, bool pin = false);
  // A group per memory node that `plan` has, each worker bound to the CPUs of its group (pin: to its own
  // CPU), the thread that calls run() to those of group 0. With one group and no pin: as the first.
  ThreadPool(const ThreadPlan& plan, bool pin);
  // Groups without any binding; for tests. REQUIRES groups in [1, threads].
  static std::unique_ptr<ThreadPool> with_groups(int threads, int groups);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls task(i, worker) for every i in [0, n), each exactly once, worker in [0, threads()). Dynamic: free
  // workers take the next index.
  void run(int64_t n, const std::function<void(int64_t, int)>& task);

  int groups() const;
  int group_threads(int group) const;  // at least 1
  // The same over [0, ends.back()), where group g is to take [ends[g - 1], ends[g]). kShared: who has nothing
  // left takes from the others. kOwn: everybody takes of his own group only, however long that lasts: for
  // memory that is to lie where it is touched first. REQUIRES groups() ends, ascending from 0 on.
  enum class Taking { kShared, kOwn };
  void run_grouped(std::span<const int64_t> ends, const std::function<void(int64_t, int)>& task,
                   Taking taking = Taking::kShared);

  // CPUs this process may use: affinity mask and cgroup quota (rounded up), at least 1.
  static int usable_cpus();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
