// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda/context.hpp"
#include "device/impl.hpp"

namespace tandem::detail::cuda {

/// CUDA events of one device, without timing, which makes them cheap. Made when none is free, then used again and
/// again. One that comes back while its record is pending may go out at once: recording it anew moves nobody who waits.
class EventPool {
 public:
  explicit EventPool(const Context& context) : context_(context) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  const Context& context() const noexcept { return context_; }
  cudaEvent_t take();
  void give(cudaEvent_t event) noexcept;

 private:
  const Context context_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // has room for all events there are, so that give() cannot fail
  std::size_t made_ = 0;
};

/// An event out of a pool; goes back with this.
class PooledEvent {
 public:
  explicit PooledEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~PooledEvent() {
    if (pool_) pool_->give(event_);
  }
  PooledEvent(PooledEvent&& other) noexcept = default;  // leaves `other` without a pool
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;

  cudaEvent_t get() const noexcept { return event_; }
  const Context& context() const noexcept { return pool_->context(); }
  /// True if what it last recorded is done. The device must be current.
  bool done() const;

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

/// A wait is for the record that it sees first, except in synchronize(): a record during the call may prolong it.
class CudaEvent final : public EventImpl {
 public:
  explicit CudaEvent(std::shared_ptr<EventPool> pool) : event_(std::move(pool)) {}

  bool query() const override;
  void synchronize(Deadline deadline) const override;
  void* native() const noexcept override { return event_.get(); }

  const Context& context() const noexcept { return event_.context(); }
  cudaEvent_t get() const noexcept { return event_.get(); }
  /// A recycled CUDA event still stands for its former user's work until it is recorded anew: it counts from then on.
  bool recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }
  void set_recorded() noexcept { recorded_.store(true, std::memory_order_release); }

 private:
  PooledEvent event_;
  std::atomic<bool> recorded_{false};
};

}  // namespace tandem::detail::cuda
