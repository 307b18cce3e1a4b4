// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/parallel.hpp"

#include <sched.h>

#include <algorithm>

#include "base/env.hpp"
#include "base/thread.hpp"

namespace tandem::detail::cpu {

ThreadPool::ThreadPool(int threads) {
  helpers_.reserve(static_cast<std::size_t>(std::max(threads - 1, 0)));
  try {
    for (int i = 1; i < threads; ++i) {
      helpers_.push_back(start_thread([this] {
        set_thread_name("tandem-kernel");
        help();
      }));
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: work with those that it gave.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  job_posted_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

ThreadPool::Job* ThreadPool::open_job() {
  for (Job* job : jobs_) {
    if (!job->source.exhausted()) return job;
  }
  return nullptr;
}

void ThreadPool::work(Job& job, std::unique_lock<std::mutex>& lock) {
  std::exception_ptr error;
  lock.unlock();
  try {
    (*job.body)(job.source);
  } catch (...) {
    error = std::current_exception();
    job.source.cancel();
  }
  lock.lock();
  if (error && !job.error) job.error = error;
}

void ThreadPool::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = nullptr;
    job_posted_.wait(lock, [&] { return stopping_ || (job = open_job()) != nullptr; });
    if (stopping_) return;
    ++job->helping;
    work(*job, lock);
    --job->helping;
    helper_left_.notify_all();
  }
}

void ThreadPool::run(std::int64_t tasks, const std::function<void(TaskSource&)>& body) {
  if (tasks <= 0) return;
  Job job{TaskSource(tasks), &body, 0, nullptr};
  std::unique_lock lock(mutex_);
  const auto place = jobs_.insert(jobs_.end(), &job);
  if (tasks > 1) job_posted_.notify_all();
  work(job, lock);
  jobs_.erase(place);
  helper_left_.wait(lock, [&] { return job.helping == 0; });
  if (job.error) std::rethrow_exception(job.error);
}

int default_threads() {
  const Env env = Env::read();
  if (env.threads) return std::max(*env.threads, 1);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
  const int cores = known ? CPU_COUNT(&mine) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(cores / std::max(env.local_world_size.value_or(1), 1), 1);
}

}  // namespace tandem::detail::cpu
