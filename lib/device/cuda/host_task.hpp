// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "device/failure.hpp"

/// Tasks of the host on CUDA streams, and what becomes of them.
///
/// CUDA runs host functions on a thread of its own, where no CUDA call may be made: not even the cudaFree of a buffer
/// whose last handle a task's closure held. So a finished task is put on a list, and its closure is destroyed by the
/// next reap(), which every call of this library on a GPU device makes. The list is the process', as a task may hold
/// the last handle of its own stream or device. If a context dies of an error, CUDA never runs the tasks that were
/// still enqueued: they, and what they hold, are leaked.
namespace tandem::detail::cuda {

/// What a task keeps of its stream.
struct TaskOwner {
  std::string stream;
  FirstFailure failure;
  std::shared_ptr<FirstFailure> device_failure;
};

/// Enqueues `task`; the device of `stream` must be current. What it throws is kept as the owner's failure.
void launch_host_task(cudaStream_t stream, int ordinal, std::shared_ptr<TaskOwner> owner, std::function<void()> task);

/// True on a thread that runs a task.
bool in_host_task() noexcept;

/// Runs `act` at the next reap().
void at_next_reap(std::function<void()> act);
void log_lost(const char* reason) noexcept;

/// Runs `act` at once, or at the next reap() if this thread runs a task: for destructors that call CUDA.
template <class Act>
void outside_tasks(Act act) noexcept {
  try {
    if (in_host_task()) {
      at_next_reap(std::move(act));
    } else {
      act();
    }
  } catch (const std::exception& e) {
    log_lost(e.what());
  }
}

/// Destroys the tasks that finished. Does nothing inside a task.
void reap() noexcept;

}  // namespace tandem::detail::cuda
