// A team of worker threads for the token step: run one task list, all threads take part, return when all is
// done. Bounded spinning, then sleep. Knows nothing of what it runs. Results must not depend on the number of
// threads: tasks write disjoint memory and never reduce across tasks. Threads: run() is called by one thread
// at a time (the owner of the pool); tasks may not call run().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace deepinfer {

class ThreadPool {
 public:
  // threads >= 1, the caller counts as one. pin: bind workers to distinct allowed CPUs when there are enough.
  explicit ThreadPool(int threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls task(i, worker) for every i in [0, n), each exactly once, worker in [0, threads()). Dynamic: free
  // workers take the next index.
  void run(int64_t n, const std::function<void(int64_t, int)>& task);

  // CPUs this process may use: affinity mask and cgroup quota (rounded up), at least 1.
  static int usable_cpus();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
