// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "device/impl.hpp"

namespace tandem::detail {

/// A thread that watches marks of streams, and acts when they are reached. It calls nothing of the device, and sleeps
/// while there is no mark to watch. Thread-safe.
class MarkWatcher {
 public:
  using Action = std::function<void()>;

  MarkWatcher();
  /// As stop().
  ~MarkWatcher();
  MarkWatcher(const MarkWatcher&) = delete;
  MarkWatcher& operator=(const MarkWatcher&) = delete;

  /// Calls `act`, which must not throw, on the thread once `mark` is reached. Marks of one `queue` are looked at in the
  /// order they were given.
  void watch(std::uint32_t queue, std::shared_ptr<const MarkImpl> mark, Action act);
  /// Forgets all marks and ends the thread: no action runs any more when it returns. Idempotent; not for an action.
  void stop() noexcept;

 private:
  struct Entry {
    std::shared_ptr<const MarkImpl> mark;
    Action act;
  };
  void run();
  bool take_reached(std::deque<Entry>& out);  // with the mutex held

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::deque<Entry>> queues_;  // none is empty
  bool stopped_ = false;
  std::mutex joining_;
  std::thread thread_;
};

}  // namespace tandem::detail
