// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/parallel.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <stdexcept>

namespace tandem::detail::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.run(count, [&](TaskSource& tasks) {
        for (std::int64_t task = 0; tasks.next(task);) ++runs[static_cast<std::size_t>(task)];
      });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, HelpersHelp) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  // Each task waits for the other: one thread alone would never finish.
  pool.run(2, [&](TaskSource& tasks) {
    for (std::int64_t task = 0; tasks.next(task);) {
      ++inside;
      while (inside < 2) std::this_thread::yield();
    }
  });
}

TEST(ThreadPool, SeveralCallersShareIt) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::int64_t local = 0;
        std::mutex mutex;
        pool.run(20, [&](TaskSource& tasks) {
          for (std::int64_t task = 0; tasks.next(task);) {
            const std::lock_guard lock(mutex);
            local += task;
          }
        });
        sum += local;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 50 * 190);
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolLivesOn) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_THROW(pool.run(100,
                          [](TaskSource& tasks) {
                            for (std::int64_t task = 0; tasks.next(task);) {
                              if (task == 7) throw std::runtime_error("seven");
                            }
                          }),
                 std::runtime_error);
  }
  std::atomic<int> runs{0};
  pool.run(10, [&](TaskSource& tasks) {
    for (std::int64_t task = 0; tasks.next(task);) ++runs;
  });
  EXPECT_EQ(runs, 10);
}

TEST(ThreadPool, DefaultFollowsTheEnvironment) {
  setenv("TANDEM_THREADS", "3", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  EXPECT_EQ(default_threads(), 3);
  unsetenv("TANDEM_THREADS");
  setenv("LOCAL_WORLD_SIZE", "100000", 1);
  EXPECT_EQ(default_threads(), 1);
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_GE(default_threads(), 1);
}

}  // namespace
}  // namespace tandem::detail::cpu
