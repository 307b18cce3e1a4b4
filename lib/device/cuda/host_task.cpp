// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/host_task.hpp"

#include <atomic>
#include <utility>

#include "base/log.hpp"
#include "device/cuda/check.hpp"

namespace tandem::detail::cuda {
namespace {

struct HostTask {
  std::function<void()> task;
  std::shared_ptr<TaskOwner> owner;  // null: run the task when it is reaped
  HostTask* next = nullptr;
};

// Pushed one by one and taken as a whole, so that no element is ever taken while it is looked at.
std::atomic<HostTask*> finished{nullptr};
thread_local bool inside = false;

void finish(HostTask* task) noexcept {
  HostTask* head = finished.load(std::memory_order_relaxed);
  do {
    task->next = head;
  } while (!finished.compare_exchange_weak(head, task, std::memory_order_release, std::memory_order_relaxed));
}

void CUDART_CB run(void* user) {
  auto* task = static_cast<HostTask*>(user);
  inside = true;
  run_task(task->task, task->owner->stream, task->owner->failure, *task->owner->device_failure);
  inside = false;
  finish(task);
}

}  // namespace

void launch_host_task(cudaStream_t stream, int ordinal, std::shared_ptr<TaskOwner> owner, std::function<void()> task) {
  auto node = std::make_unique<HostTask>();
  node->task = std::move(task);
  node->owner = std::move(owner);
  check(cudaLaunchHostFunc(stream, run, node.get()), "cudaLaunchHostFunc", ordinal);
  static_cast<void>(node.release());  // CUDA's now, until it ran
}

bool in_host_task() noexcept { return inside; }

void at_next_reap(std::function<void()> act) {
  auto node = std::make_unique<HostTask>();
  node->task = std::move(act);
  finish(node.release());
}

void log_lost(const char* reason) noexcept { log::write(log::Level::warn, reason); }

void reap() noexcept {
  if (inside) return;
  HostTask* task = finished.exchange(nullptr, std::memory_order_acquire);
  while (task != nullptr) {
    const std::unique_ptr<HostTask> gone(task);
    task = task->next;
    if (!gone->owner) outside_tasks(std::move(gone->task));
  }
}

}  // namespace tandem::detail::cuda
