// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "device/impl.hpp"

namespace tandem::detail {

/// A one-shot flag with waiters: a signal of the host device, and what one record of an event stands for.
class HostFlag final : public SignalImpl {
 public:
  void set() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      set_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }
  bool is_set() const noexcept override { return set_.load(std::memory_order_acquire); }
  bool wait(Deadline deadline) const override {
    if (is_set()) return true;
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.time(), [this] { return is_set(); });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> set_{false};
};

/// Blocks without end: a stream has no deadline of its own, whoever owns the flag does.
inline void wait_forever(const SignalImpl& flag) {
  while (!flag.wait(Deadline::after(std::chrono::hours(24)))) {
  }
}

/// Points at the flag of its latest record; who waits keeps the flag it saw, so a later record does not move the wait.
class HostEvent final : public EventImpl {
 public:
  bool query() const override {
    const std::shared_ptr<HostFlag> flag = latest();
    return !flag || flag->is_set();
  }
  void synchronize(Deadline deadline) const override {
    const std::shared_ptr<HostFlag> flag = latest();
    if (flag && !flag->wait(deadline)) {
      throw Error(ErrorCode::timeout, "the work that an event stands for was not done at the deadline");
    }
  }

  std::shared_ptr<HostFlag> latest() const {
    const std::lock_guard lock(mutex_);
    return flag_;
  }
  void set_latest(std::shared_ptr<HostFlag> flag) {
    const std::lock_guard lock(mutex_);
    flag_ = std::move(flag);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<HostFlag> flag_;
};

}  // namespace tandem::detail
