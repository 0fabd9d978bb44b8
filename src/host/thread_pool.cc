// The worker team of the token step. See thread_pool.h for the contract.
//
// A job is open or closed. Workers enter an open job, take indices until none is left, and leave; the owner
// closes it when it runs out of indices itself and waits for those inside. A worker that the system did not
// wake in time never enters, so a busy machine costs speed, not a scheduler tick per job: no step waits for a
// thread that has nothing in hand.
//
// All of that is one 64-bit word: job number, open bit, workers inside. Waiting is a bounded spin, then a
// futex; each sleeper announces itself first (sequentially consistent), so that the waking side skips the
// system call when nobody sleeps.
#include "host/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <thread>
#include <vector>

#include "base/check.h"
#include "host/limits.h"
#include "host/topology.h"

namespace deepinfer {
namespace {

constexpr uint64_t kInsideMask = 0xffff;          // workers inside the job
constexpr uint64_t kOpen = 1u << 16;              // the job accepts workers
constexpr uint64_t kJobStep = uint64_t{1} << 17;  // job number counts from here

// Pauses before sleeping. A pause is 10 to 40 ns on current CPUs, so this is some tens of microseconds:
// longer than the serial parts between two jobs of one token step, shorter than a scheduler tick.
constexpr int kSpinPauses = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is one 32-bit word");

// Sleeps while *word == expected; may return for no reason.
void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void bind_to(pthread_t thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  // A refusal (the mask changed meanwhile) leaves the thread unbound, which is correct, only slower.
  pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

struct ThreadPool::Impl {
  int threads = 1;
  int spin_pauses = kSpinPauses;

  // The job. Written by the owner while it is closed and nobody is inside.
  const std::function<void(int64_t, int)>* task = nullptr;
  // The tasks of a group; those of a job without groups are all in the first.
  struct alignas(64) List {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<List> lists = std::vector<List>(1);
  size_t lists_used = 1;
  bool own_only = false;
  std::vector<int> group;  // of each worker
  std::vector<int> group_size;

  alignas(64) std::atomic<uint64_t> job{0};
  alignas(64) std::atomic<uint32_t> work_word{0};  // workers sleep here; changes with every job
  std::atomic<int> sleeping_workers{0};
  alignas(64) std::atomic<uint32_t> done_word{0};  // the owner sleeps here
  std::atomic<bool> owner_sleeps{false};
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};

  std::vector<std::thread> workers;

  // noexcept: a task that throws ends the program at once rather than leaving workers inside a dead job.
  void take_indices(int worker) noexcept {
    const size_t first = lists_used == 1 ? 0 : static_cast<size_t>(group[static_cast<size_t>(worker)]);
    for (size_t k = 0; k < (own_only ? 1 : lists_used); ++k) {
      List& list = lists[(first + k) % lists_used];
      for (;;) {
        int64_t i = list.next.fetch_add(1, std::memory_order_relaxed);
        if (i >= list.end) break;
        (*task)(i, worker);
      }
    }
  }

  bool all_taken() const {
    for (size_t g = 0; g < lists_used; ++g) {
      if (lists[g].next.load(std::memory_order_relaxed) < lists[g].end) return false;
    }
    return true;
  }

  void start(const std::vector<int>& groups_of) {
    threads = static_cast<int>(groups_of.size());
    group = groups_of;
    for (int g : group) {
      if (static_cast<size_t>(g) >= group_size.size()) group_size.resize(static_cast<size_t>(g) + 1);
      ++group_size[static_cast<size_t>(g)];
    }
    lists = std::vector<List>(group_size.size());
    // With more threads than CPUs a spinning thread only keeps a working one from its CPU.
    if (threads > usable_cpus()) spin_pauses = 0;
    for (int w = 1; w < threads; ++w) workers.emplace_back([this, w] { worker_loop(w); });
  }

  // The job of the lists as they are.
  void go(const std::function<void(int64_t, int)>& f, bool alone) {
    task = &f;
    if (alone) {
      own_only = false;
      take_indices(0);
      return;
    }
    uint64_t number = job.load(std::memory_order_relaxed) / kJobStep + 1;
    job.store(number * kJobStep | kOpen, std::memory_order_seq_cst);
    wake_workers();
    take_indices(0);
    // Nobody else takes the others' tasks: the job stays open until they have come for them.
    while (own_only && !all_taken()) {
      wake_workers();
      std::this_thread::yield();
    }
    job.fetch_and(~kOpen, std::memory_order_seq_cst);
    wait_until_empty();
  }

  // True when a job later than `*seen` was open and this worker is now inside it.
  bool try_enter(uint64_t* seen) {
    uint64_t s = job.load(std::memory_order_seq_cst);
    while ((s & kOpen) != 0 && s / kJobStep != *seen) {
      if (job.compare_exchange_weak(s, s + 1, std::memory_order_seq_cst)) {
        *seen = s / kJobStep;
        return true;
      }
    }
    return false;
  }

  void leave() {
    uint64_t before = job.fetch_sub(1, std::memory_order_seq_cst);
    if ((before & kInsideMask) == 1 && (before & kOpen) == 0 &&
        owner_sleeps.load(std::memory_order_seq_cst)) {
      done_word.fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(&done_word);
    }
  }

  void worker_loop(int worker) {
    uint64_t seen = 0;
    int spins = 0;
    while (!stop.load(std::memory_order_acquire)) {
      if (try_enter(&seen)) {
        take_indices(worker);
        leave();
        spins = 0;
        continue;
      }
      if (spins < spin_pauses) {
        ++spins;
        pause_cpu();
        continue;
      }
      spins = 0;
      sleeping_workers.fetch_add(1, std::memory_order_seq_cst);
      uint32_t word = work_word.load(std::memory_order_seq_cst);
      uint64_t s = job.load(std::memory_order_seq_cst);
      bool work_waits = (s & kOpen) != 0 && s / kJobStep != seen;
      if (!work_waits && !stop.load(std::memory_order_seq_cst)) futex_wait(&work_word, word);
      sleeping_workers.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void wake_workers() {
    work_word.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_workers.load(std::memory_order_seq_cst) > 0) futex_wake_all(&work_word);
  }

  void wait_until_empty() {
    for (int spins = 0; spins < spin_pauses; ++spins) {
      if ((job.load(std::memory_order_acquire) & kInsideMask) == 0) return;
      pause_cpu();
    }
    owner_sleeps.store(true, std::memory_order_seq_cst);
    for (;;) {
      uint32_t word = done_word.load(std::memory_order_seq_cst);
      if ((job.load(std::memory_order_seq_cst) & kInsideMask) == 0) break;
      futex_wait(&done_word, word);
    }
    owner_sleeps.store(false, std::memory_order_seq_cst);
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  DI_CHECK(threads >= 1 && threads < static_cast<int>(kInsideMask), fmt::format("{} threads", threads));
  impl_->start(std::vector<int>(static_cast<size_t>(threads), 0));
}

ThreadPool::ThreadPool(const ThreadPlan& plan, Bind bind) : impl_(std::make_unique<Impl>()) {
  const size_t threads = plan.group.size();
  DI_CHECK(threads >= 1 && threads < kInsideMask && (bind == Bind::kNone || plan.cpu.size() == threads),
           fmt::format("a plan of {} threads and {} CPUs", threads, plan.cpu.size()));
  impl_->start(plan.group);
  if (bind == Bind::kNone) return;
  std::vector<std::vector<int>> cpus(static_cast<size_t>(plan.groups));
  for (size_t w = 0; w < threads; ++w) cpus[static_cast<size_t>(plan.group[w])].push_back(plan.cpu[w]);
  const auto mine = [&](size_t w) {
    return bind == Bind::kCpu ? std::vector<int>{plan.cpu[w]} : cpus[static_cast<size_t>(plan.group[w])];
  };
  for (size_t w = 1; w < threads; ++w) bind_to(impl_->workers[w - 1].native_handle(), mine(w));
}

std::unique_ptr<ThreadPool> ThreadPool::with_groups(int threads, int groups) {
  DI_CHECK(groups >= 1 && groups <= threads, fmt::format("{} groups of {} threads", groups, threads));
  ThreadPlan plan;
  plan.groups = groups;
  for (int w = 0; w < threads; ++w) plan.group.push_back(w % groups);
  return std::make_unique<ThreadPool>(plan, Bind::kNone);
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_seq_cst);
  impl_->wake_workers();
  for (std::thread& t : impl_->workers) t.join();
}

int ThreadPool::threads() const {
  return impl_->threads;
}

int ThreadPool::groups() const {
  return static_cast<int>(impl_->group_size.size());
}

int ThreadPool::group_threads(int group) const {
  return impl_->group_size[static_cast<size_t>(group)];
}

void ThreadPool::run(int64_t n, const std::function<void(int64_t, int)>& task) {
  if (n <= 0) return;
  Impl& p = *impl_;
  DI_CHECK(!p.running.exchange(true, std::memory_order_acquire),
           "ThreadPool::run called while a job runs (from a task, or from a second thread)");
  p.lists_used = 1;
  p.own_only = false;
  p.lists[0].next.store(0, std::memory_order_relaxed);
  p.lists[0].end = n;
  p.go(task, p.threads == 1 || n == 1);
  p.running.store(false, std::memory_order_release);
}

void ThreadPool::run_grouped(std::span<const int64_t> ends, const std::function<void(int64_t, int)>& task,
                             Taking taking) {
  Impl& p = *impl_;
  DI_CHECK(ends.size() == p.lists.size(), fmt::format("{} ends for {} groups", ends.size(), p.lists.size()));
  if (ends.size() == 1) return run(ends[0], task);
  if (ends.back() <= 0) return;
  DI_CHECK(!p.running.exchange(true, std::memory_order_acquire),
           "ThreadPool::run called while a job runs (from a task, or from a second thread)");
  p.lists_used = ends.size();
  p.own_only = taking == Taking::kOwn;
  int64_t begin = 0;
  for (size_t g = 0; g < ends.size(); ++g) {
    p.lists[g].next.store(begin, std::memory_order_relaxed);
    p.lists[g].end = begin = ends[g];
  }
  p.go(task, !p.own_only && ends.back() == 1);
  p.running.store(false, std::memory_order_release);
}

int ThreadPool::usable_cpus() {
  return usable_cpu_count(allowed_cpu_count(), read_cgroup_limits().cpu_quota);
}

}  // namespace deepinfer
