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
  // threads >= 1, the caller counts as one. One group, bound to nothing.
  explicit ThreadPool(int threads);
  // A group per memory node that `plan` has. Workers are bound to the CPUs of their group or each to its own;
  // the thread that calls run(), which belongs to group 0, is not: what it starts later would inherit that.
  enum class Bind { kNone, kNode, kCpu };
  ThreadPool(const ThreadPlan& plan, Bind bind);
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
