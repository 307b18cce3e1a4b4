// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/failure.hpp"
#include "tandem/deadline.hpp"

namespace tandem::detail {

/// What a queue knows of one of its streams. It outlives the stream's handles while work is queued.
struct StreamState {
  std::string name;
  FirstFailure failure;
  std::shared_ptr<FirstFailure> device_failure;
  // Guarded by the queue's mutex. A stream's tasks finish in order, so two counts say which are done.
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
};

/// The part of a queue that its thread shares: it lives until the last handle is gone and the last task has run.
class QueueCore {
 public:
  void push(std::shared_ptr<StreamState> stream, std::function<void()> task);
  /// Blocks until the tasks given to `stream` before this call are done. Throws timeout; throws invalid_usage where it
  /// could never return, on the queue's own thread.
  void synchronize(const StreamState& stream, Deadline deadline);
  bool idle(const StreamState& stream) const;
  /// Blocks until no task is pending, and returns how many there ever were. Throws as synchronize() does.
  std::uint64_t wait_idle(Deadline deadline);

  /// What the thread does until close() was called and no task is left.
  void run(const std::string& thread_name);
  /// True if no task was pending.
  bool close();

 private:
  struct Entry {
    std::shared_ptr<StreamState> stream;
    std::function<void()> task;
  };
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const std::string& who, Done done);

  mutable std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable completed_;
  std::deque<Entry> entries_;
  std::thread::id thread_id_;
  std::uint64_t total_ = 0;
  std::uint64_t pending_ = 0;  // the running task included
  int waiters_ = 0;
  bool closed_ = false;
};

/// The queues of a device whose threads run. A thread leaves the list as its last act, so that whoever finds it gone
/// also sees what its tasks wrote.
class LiveQueues {
 public:
  void add(std::shared_ptr<QueueCore> core);
  void remove(const QueueCore* core);
  std::vector<std::shared_ptr<QueueCore>> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<QueueCore>> cores_;
};

/// A thread that runs tasks in the order they were given. Destroying it never waits for a task: what is queued still
/// runs, then the thread ends.
class HostQueue {
 public:
  HostQueue(const std::string& thread_name, std::shared_ptr<LiveQueues> live);
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  QueueCore& core() const noexcept { return *core_; }

 private:
  std::shared_ptr<QueueCore> core_;
  std::thread thread_;
};

}  // namespace tandem::detail
