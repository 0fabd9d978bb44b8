// Every index exactly once, on any number of threads, for jobs of any size, with sleeping and with spinning
// workers; writes of a task are visible to the owner; a nested call is caught. Run under TSan by `./run
// soak`.
#include "host/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "host/limits.h"

namespace deepinfer {
namespace {

TEST(ThreadPool, EveryIndexExactlyOnce) {
  for (int threads : {1, 2, 3, 5, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t n :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{64}, int64_t{1000}}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      std::atomic<bool> bad_worker{false};
      pool.run(n, [&](int64_t i, int worker) {
        if (worker < 0 || worker >= threads) bad_worker = true;
        hits[static_cast<size_t>(i)].fetch_add(1);
      });
      for (int64_t i = 0; i < n; ++i)
        EXPECT_EQ(hits[static_cast<size_t>(i)].load(), 1) << threads << " threads, " << i;
      EXPECT_FALSE(bad_worker.load());
    }
  }
}

TEST(ThreadPool, PlainWritesAreVisibleAfterRunAndBetweenJobs) {
  // Plain (not atomic) memory on purpose: TSan must find the ordering in the pool itself.
  ThreadPool pool(3);
  std::vector<int64_t> a(97, 0), b(97, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.run(97, [&](int64_t i, int) { a[static_cast<size_t>(i)] = round + i; });
    // Reads what other workers wrote in the job before.
    pool.run(97, [&](int64_t i, int) { b[static_cast<size_t>(i)] = a[static_cast<size_t>(96 - i)]; });
    int64_t sum = std::accumulate(b.begin(), b.end(), int64_t{0});
    ASSERT_EQ(sum, 97 * round + 96 * 97 / 2);
  }
}

TEST(ThreadPool, WorkersThatSleepWakeAgain) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than any spin
    std::atomic<int> entered{0};
    // Both indices wait for each other, so this ends only if the sleeping worker is woken.
    pool.run(2, [&](int64_t, int) {
      entered.fetch_add(1);
      while (entered.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(entered.load(), 2);
  }
}

TEST(ThreadPool, OwnerWaitsForASlowWorker) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> entered{0};
    bool slow_done = false;
    pool.run(2, [&](int64_t, int worker) {
      entered.fetch_add(1);
      while (entered.load() < 2) std::this_thread::yield();
      if (worker == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        slow_done = true;
      }
    });
    EXPECT_TRUE(slow_done);
  }
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    const ThreadPlan plan = plan_threads(i % 50 == 0 ? read_topology() : Topology(), 1 + i % 4);
    auto owned = plan.cpu.empty() ? std::make_unique<ThreadPool>(1 + i % 4)
                                  : std::make_unique<ThreadPool>(plan, ThreadPool::Bind::kNode);
    ThreadPool& pool = *owned;
    if (i % 3 == 0) continue;  // destroyed without work
    std::atomic<int> count{0};
    pool.run(5, [&](int64_t, int) { count.fetch_add(1); });
    EXPECT_EQ(count.load(), 5);
  }
}

// Groups: every task once, whoever takes it; the own ones first; and with kOwn nobody else's at all.
TEST(ThreadPool, GroupsTakeTheirOwnFirst) {
  for (int threads : {2, 3, 5}) {
    for (int groups = 1; groups <= threads; ++groups) {
      auto pool = ThreadPool::with_groups(threads, groups);
      ASSERT_EQ(pool->groups(), groups);
      int sum = 0;
      for (int g = 0; g < groups; ++g) sum += pool->group_threads(g);
      EXPECT_EQ(sum, threads);
      for (auto taking : {ThreadPool::Taking::kShared, ThreadPool::Taking::kOwn}) {
        for (int64_t each : {0, 1, 3, 40}) {
          std::vector<int64_t> ends;
          // The last group has none, so its threads help or stand by.
          for (int g = 0; g < groups; ++g) ends.push_back(each * std::min(g + 1, std::max(1, groups - 1)));
          std::vector<std::atomic<int>> hits(static_cast<size_t>(ends.back()));
          std::atomic<int> foreign{0};
          pool->run_grouped(
              ends,
              [&](int64_t i, int worker) {
                hits[static_cast<size_t>(i)].fetch_add(1);
                int owner = 0;
                while (i >= ends[static_cast<size_t>(owner)]) ++owner;
                if (owner != worker % groups) foreign.fetch_add(1);
              },
              taking);
          for (auto& h : hits) EXPECT_EQ(h.load(), 1);
          if (taking == ThreadPool::Taking::kOwn) {
            EXPECT_EQ(foreign.load(), 0);
          }
        }
      }
      // A plain job in between uses all threads.
      std::atomic<int> count{0};
      pool->run(50, [&](int64_t, int) { count.fetch_add(1); });
      EXPECT_EQ(count.load(), 50);
    }
  }
}

TEST(ThreadPool, AForeignTaskIsTakenOnlyWhenNoneIsLeft) {
  auto pool = ThreadPool::with_groups(2, 2);
  for (int round = 0; round < 50; ++round) {
    // The owner's first task waits until the other group is through with its own and has come for his second.
    std::atomic<int> order{0};
    std::vector<int> at(4, -1);
    std::vector<int64_t> ends = {2, 4};
    pool->run_grouped(ends, [&](int64_t i, int) {
      at[static_cast<size_t>(i)] = order.fetch_add(1);
      if (i == 0) {
        while (order.load() < 4) std::this_thread::yield();
      }
    });
    EXPECT_GT(at[1], at[2]);
    EXPECT_GT(at[1], at[3]);
  }
}

TEST(ThreadPool, APlanBindsItsWorkersAndNotItsOwner) {
  const ThreadPlan plan = plan_threads(read_topology(), 2);
  if (plan.cpu.empty()) GTEST_SKIP() << "one CPU only";
  const std::vector<int> before = allowed_cpus();
  ThreadPool pool(plan, ThreadPool::Bind::kCpu);
  std::vector<int> worker;
  std::atomic<int> entered{0};
  pool.run(2, [&](int64_t, int w) {  // each waits for the other, so both take part
    if (w == 1) worker = allowed_cpus();
    entered.fetch_add(1);
    while (entered.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(worker, std::vector<int>{plan.cpu[1]});
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(ThreadPoolDeathTest, NestedRunIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.run(1, [&](int64_t, int) { pool.run(1, [](int64_t, int) {}); });
      },
      "called while a job runs");
}

TEST(ThreadPool, UsableCpusIsAtLeastOne) {
  EXPECT_GE(ThreadPool::usable_cpus(), 1);
}

}  // namespace
}  // namespace deepinfer
