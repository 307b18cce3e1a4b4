// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::detail::cpu {

/// Hands out the tasks 0, 1, ... count - 1 of one ThreadPool::run, each once.
class TaskSource {
 public:
  explicit TaskSource(std::int64_t count) : count_(count) {}
  /// False when all are taken.
  bool next(std::int64_t& task) noexcept {
    if (exhausted()) return false;
    task = next_.fetch_add(1, std::memory_order_relaxed);
    return task < count_;
  }
  bool exhausted() const noexcept { return next_.load(std::memory_order_relaxed) >= count_; }
  void cancel() noexcept { next_.store(count_, std::memory_order_relaxed); }

 private:
  const std::int64_t count_;
  std::atomic<std::int64_t> next_{0};
};

/// Threads that help whoever calls run(). Several callers may run at the same time; they share the helpers.
class ThreadPool {
 public:
  /// `threads` counts the caller of run(): one fewer is started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return static_cast<int>(helpers_.size()) + 1; }
  /// Calls `body` in the caller and in helpers that are free, once in each; bodies take tasks from the source until
  /// there are none, and keep their scratch across tasks. Returns when all bodies have; then throws the first exception
  /// of one.
  void run(std::int64_t tasks, const std::function<void(TaskSource&)>& body);

 private:
  struct Job {
    TaskSource source;
    const std::function<void(TaskSource&)>* body;
    int helping = 0;
    std::exception_ptr error;
  };
  void help();
  void work(Job& job, std::unique_lock<std::mutex>& lock);
  Job* open_job();

  std::mutex mutex_;
  std::condition_variable job_posted_;
  std::condition_variable helper_left_;
  std::list<Job*> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

/// Threads of a kernel call where the caller names none: TANDEM_THREADS, else the cores this process may use divided by
/// the ranks on this host.
int default_threads();

}  // namespace tandem::detail::cpu
