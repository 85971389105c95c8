#include "headrace/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace headrace {
namespace {

TEST(ThreadPool, EveryWorkerRunsOnceAndTheCallerIsWorkerZero) {
  for (int size : {1, 2, 3, 8}) {
    ThreadPool pool(size, /*pin=*/false);
    ASSERT_EQ(pool.size(), size);
    std::vector<int> calls(static_cast<size_t>(size), 0);
    std::vector<std::thread::id> ids(static_cast<size_t>(size));
    pool.run([&](int worker) {
      ++calls[static_cast<size_t>(worker)];
      ids[static_cast<size_t>(worker)] = std::this_thread::get_id();
    });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(size), 1));
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), static_cast<size_t>(size));
  }
}

TEST(ThreadPool, AWorkersIndexIsItsThreadsForEver) {
  ThreadPool pool(3, false);
  std::vector<std::thread::id> first(3), again(3);
  pool.run([&](int w) { first[static_cast<size_t>(w)] = std::this_thread::get_id(); });
  for (int i = 0; i < 100; ++i) {
    pool.run([&](int w) { again[static_cast<size_t>(w)] = std::this_thread::get_id(); });
    ASSERT_EQ(first, again);
  }
}

TEST(ThreadPool, RangesPartitionExactlyInWholeGrains) {
  for (int size : {1, 2, 3, 5}) {
    ThreadPool pool(size, false);
    for (int64_t n : {0, 1, 2, 7, 16, 31, 32, 33, 100, 1000, 4097}) {
      for (int64_t grain : {1, 4, 16, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        std::atomic<bool> good{true};
        pool.for_range(n, grain, [&](int64_t begin, int64_t end, int worker) {
          if (begin >= end || begin % grain != 0 || worker >= size) good = false;
          if (end != n && end % grain != 0) good = false;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_TRUE(good) << size << " " << n << " " << grain;
        for (auto& count : seen)
          ASSERT_EQ(count.load(), 1) << size << " " << n << " " << grain;
      }
    }
  }
}

TEST(ThreadPool, WhoGetsWhichRangeIsFixed) {
  ThreadPool pool(3, false);
  const auto owners = [&] {
    std::vector<int> owner(100, -1);
    pool.for_range(100, 4, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) owner[static_cast<size_t>(i)] = worker;
    });
    return owner;
  };
  const std::vector<int> first = owners();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(owners(), first);
}

TEST(ThreadPool, ManyRunsInARowLoseNoCall) {
  ThreadPool pool(4, false);
  int64_t sums[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4'000; ++i) {
    pool.run([&](int worker) { sums[worker] += i; });
  }
  for (int64_t sum : sums) EXPECT_EQ(sum, int64_t{4'000} * 3'999 / 2);
}

TEST(ThreadPool, WakesWorkersThatHaveGoneToSleep) {
  ThreadPool pool(3, false);
  std::atomic<int> calls{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls, 15);
}

TEST(ThreadPool, TheCallerWaitsForTheSlowestWorker) {
  ThreadPool pool(2, false);
  for (int slow : {0, 1}) {
    std::atomic<int> done{0};
    pool.run([&](int worker) {
      if (worker == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++done;
    });
    EXPECT_EQ(done, 2);
  }
}

TEST(ThreadPool, WhatAWorkerWroteIsSeenByTheCallerAndTheNextRun) {
  ThreadPool pool(2, false);
  std::vector<int> data(64, 0);
  for (int round = 1; round <= 1000; ++round) {
    pool.run([&](int worker) {
      for (size_t i = worker == 0 ? 0 : 32; i < (worker == 0 ? 32u : 64u); ++i)
        data[i] = round;
    });
    // The halves change hands: each worker reads what the other wrote.
    std::atomic<int> wrong{0};
    pool.run([&](int worker) {
      for (size_t i = worker == 0 ? 32 : 0; i < (worker == 0 ? 64u : 32u); ++i) {
        if (data[i] != round) ++wrong;
      }
    });
    ASSERT_EQ(wrong, 0);
  }
}

TEST(ThreadPool, CanBeMadeAndDestroyedManyTimes) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4, i % 2 == 0);
    std::atomic<int> calls{0};
    if (i % 3 != 0) {
      pool.run([&](int) { ++calls; });
      ASSERT_EQ(calls, pool.size());
    }
  }
}

int cpus_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

// A caller left pinned would hand its one CPU to every thread that it starts later.
TEST(ThreadPool, APinnedCallerGetsItsCpusBackWhenThePoolEnds) {
  const int before = cpus_of_this_thread();
  if (before < 2) GTEST_SKIP() << "one CPU: nothing is pinned";
  {
    ThreadPool pool(2);
    EXPECT_EQ(cpus_of_this_thread(), 1);
  }
  EXPECT_EQ(cpus_of_this_thread(), before);
  ThreadPool second(2);
  std::vector<int> cpu(2, -1);
  second.run([&](int worker) { cpu[static_cast<size_t>(worker)] = sched_getcpu(); });
  EXPECT_NE(cpu[0], cpu[1]);
}

TEST(ThreadPoolDeathTest, APoolOfNobodyIsAMistakeOfOurs) {
  EXPECT_DEATH(ThreadPool pool(0), "at least the calling thread");
}

}  // namespace
}  // namespace headrace
