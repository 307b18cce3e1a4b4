// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/event.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/host_task.hpp"
#include "device/cuda/poll.hpp"

namespace tandem::detail::cuda {

EventPool::~EventPool() {
  if (free_.empty()) return;
  outside_tasks([context = context_, events = std::move(free_)] {
    const QuietDeviceGuard guard(context);
    if (!guard) return;
    for (cudaEvent_t event : events) check_quietly(cudaEventDestroy(event), "cudaEventDestroy", context.ordinal);
  });
}

cudaEvent_t EventPool::take() {
  const DeviceGuard guard(context_);
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  if (free_.capacity() <= made_) free_.reserve(2 * made_ + 16);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", context_.ordinal);
  ++made_;
  return event;
}

void EventPool::give(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

bool PooledEvent::done() const {
  const RelaxedCapture relaxed;
  return ready(cudaEventQuery(event_), "cudaEventQuery", context().ordinal);
}

bool CudaEvent::query() const {
  if (!recorded()) return true;
  const DeviceGuard guard(context());
  return event_.done();
}

void CudaEvent::synchronize(Deadline deadline) const {
  if (!recorded()) return;
  const DeviceGuard guard(context());
  if (!poll_until(deadline, [this] { return event_.done(); })) {
    throw Error(ErrorCode::timeout, "the work that an event stands for was not done at the deadline");
  }
}

}  // namespace tandem::detail::cuda
