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

void pin_to(std::thread* thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // A refusal (the mask changed meanwhile) leaves the thread unpinned, which is correct, only slower.
  pthread_setaffinity_np(thread->native_handle(), sizeof(set), &set);
}

}  // namespace

struct ThreadPool::Impl {
  int threads = 1;
  int spin_pauses = kSpinPauses;

  // The job. Written by the owner while it is closed and nobody is inside.
  const std::function<void(int64_t, int)>* task = nullptr;
  int64_t n = 0;
  alignas(64) std::atomic<int64_t> next{0};

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
    for (;;) {
      int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n) return;
      (*task)(i, worker);
    }
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

ThreadPool::ThreadPool(int threads, bool pin) : impl_(std::make_unique<Impl>()) {
  DI_CHECK(threads >= 1 && threads < static_cast<int>(kInsideMask), fmt::format("{} threads", threads));
  impl_->threads = threads;
  // With more threads than CPUs a spinning thread only keeps a working one from its CPU.
  if (threads > usable_cpus()) impl_->spin_pauses = 0;
  std::vector<int> order;
  if (pin) order = read_topology().cpu_order;
  for (int w = 1; w < threads; ++w) {
    impl_->workers.emplace_back([impl = impl_.get(), w] { impl->worker_loop(w); });
    if (order.size() >= static_cast<size_t>(threads))
      pin_to(&impl_->workers.back(), order[static_cast<size_t>(w)]);
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_seq_cst);
  impl_->wake_workers();
  for (std::thread& t : impl_->workers) t.join();
}

int ThreadPool::threads() const {
  return impl_->threads;
}

void ThreadPool::run(int64_t n, const std::function<void(int64_t, int)>& task) {
  if (n <= 0) return;
  Impl& p = *impl_;
  DI_CHECK(!p.running.exchange(true, std::memory_order_acquire),
           "ThreadPool::run called while a job runs (from a task, or from a second thread)");
  p.task = &task;
  p.n = n;
  p.next.store(0, std::memory_order_relaxed);
  if (p.threads == 1 || n == 1) {
    p.take_indices(0);
  } else {
    uint64_t number = p.job.load(std::memory_order_relaxed) / kJobStep + 1;
    p.job.store(number * kJobStep | kOpen, std::memory_order_seq_cst);
    p.wake_workers();
    p.take_indices(0);
    p.job.fetch_and(~kOpen, std::memory_order_seq_cst);
    p.wait_until_empty();
  }
  p.running.store(false, std::memory_order_release);
}

int ThreadPool::usable_cpus() {
  return usable_cpu_count(allowed_cpu_count(), read_cgroup_limits().cpu_quota);
}

}  // namespace deepinfer
