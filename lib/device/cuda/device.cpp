// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "base/text.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/host_task.hpp"
#include "device/cuda/poll.hpp"
#include "device/cuda/preload.hpp"
#include "device/cuda/signal.hpp"
#include "device/cuda/stream.hpp"

namespace tandem::detail::cuda {
namespace {

constexpr std::size_t signals_at_start = 1024;

std::string describe(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", ordinal);
  return fmt::format("cuda:{} ({}, {}, compute capability {}.{})", ordinal, properties.name,
                     format_bytes(properties.totalGlobalMem), properties.major, properties.minor);
}

}  // namespace

CudaDevice::CudaDevice(int ordinal, const CudaDeviceOptions& options)
    : context_(Context::open(ordinal)),
      poison_(options.poison),
      description_(cuda::describe(ordinal)),
      events_(std::make_shared<EventPool>(context_)) {
  const DeviceGuard guard(context_);
  reap();
  preload(ordinal);
  SignalWords::instance().reserve(context_, signals_at_start);
}

CudaDevice::~CudaDevice() {
  if (fill_stream_ == nullptr) return;
  outside_tasks([context = context_, stream = fill_stream_] {
    const QuietDeviceGuard guard(context);
    if (guard) check_quietly(cudaStreamDestroy(stream), "cudaStreamDestroy", context.ordinal);
  });
}

std::shared_ptr<TaskOwner> CudaDevice::task_owner(const std::string& name) const {
  auto owner = std::make_shared<TaskOwner>();
  owner->stream = name;
  owner->device_failure = failure_;
  return owner;
}

std::shared_ptr<StreamImpl> CudaDevice::create_stream(const StreamOptions& options) {
  const DeviceGuard guard(context_);
  reap();
  int lowest = 0;
  int highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", context_.ordinal);
  std::shared_ptr<TaskOwner> owner = task_owner(options.name);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, options.high_priority ? highest : lowest),
        "cudaStreamCreateWithPriority", context_.ordinal);
  try {
    return std::make_shared<CudaStream>(shared_from_this(), stream, true, std::move(owner));
  } catch (...) {
    check_quietly(cudaStreamDestroy(stream), "cudaStreamDestroy", context_.ordinal);
    throw;
  }
}

std::shared_ptr<StreamImpl> CudaDevice::wrap_stream(void* native, const std::string& name) {
  const DeviceGuard guard(context_);
  const auto stream = static_cast<cudaStream_t>(native);
  if (stream != nullptr) {
    int ordinal = 0;
    check(cudaStreamGetDevice(stream, &ordinal), "cudaStreamGetDevice", context_.ordinal);
    if (ordinal != context_.ordinal) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("stream '{}' is of device {}, not of device {}", name, ordinal, context_.ordinal));
    }
  }
  return std::make_shared<CudaStream>(shared_from_this(), stream, false, task_owner(name));
}

std::shared_ptr<EventImpl> CudaDevice::create_event() { return std::make_shared<CudaEvent>(events_); }

std::shared_ptr<SignalImpl> CudaDevice::create_signal() { return std::make_shared<CudaSignal>(context_); }

std::shared_ptr<void> CudaDevice::allocate(std::size_t bytes) {
  const DeviceGuard guard(context_);
  const RelaxedCapture relaxed;
  reap();
  void* memory = nullptr;
  // At least one byte: buffers of 0 bytes have addresses of their own, too. CUDA aligns to 256 bytes and more.
  const cudaError_t result = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (result == cudaErrorMemoryAllocation || result == cudaErrorInvalidValue) {  // the size alone can be invalid
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", context_.ordinal);
    throw Error(ErrorCode::out_of_memory, fmt::format("device {}: {} wanted, {} of {} are free", context_.ordinal,
                                                      format_bytes(bytes), format_bytes(free), format_bytes(total)));
  }
  check(result, "cudaMalloc", context_.ordinal);
  const auto release = [context = context_](void* p) {
    outside_tasks([context, p] {
      const QuietDeviceGuard current(context);
      if (!current) return;
      const RelaxedCapture without_spoiling;
      check_quietly(cudaFree(p), "cudaFree", context.ordinal);
    });
  };
  memory_->add(bytes);
  // The count goes down when the last handle goes, even where the memory itself has to wait for a reap().
  std::shared_ptr<void> buffer(memory, [release, count = memory_, bytes](void* p) {
    release(p);
    count->remove(bytes);
  });
  if (poison_) fill(memory, bytes);
  return buffer;
}

std::shared_ptr<void> CudaDevice::allocate_host(std::size_t bytes) {
  const DeviceGuard guard(context_);
  const RelaxedCapture relaxed;
  reap();
  void* memory = nullptr;
  // Whole pages, so that it is aligned.
  const cudaError_t result =
      cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable | cudaHostAllocMapped);
  if (result == cudaErrorMemoryAllocation || result == cudaErrorInvalidValue) {  // the size alone can be invalid
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::out_of_memory, fmt::format("device {}: {} of page-locked host memory wanted: {}",
                                                      context_.ordinal, format_bytes(bytes), cudaGetErrorName(result)));
  }
  check(result, "cudaHostAlloc", context_.ordinal);
  if (poison_) std::memset(memory, 0xFF, bytes);
  return {memory, [context = context_](void* p) {
            outside_tasks([context, p] {
              const QuietDeviceGuard current(context);
              if (!current) return;
              const RelaxedCapture without_spoiling;
              check_quietly(cudaFreeHost(p), "cudaFreeHost", context.ordinal);
            });
          }};
}

void CudaDevice::fill(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  if (fill_stream_ == nullptr) {
    check(cudaStreamCreateWithFlags(&fill_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags",
          context_.ordinal);
  }
  check(cudaMemsetAsync(memory, 0xFF, bytes, fill_stream_), "cudaMemsetAsync", context_.ordinal);
  check(cudaStreamSynchronize(fill_stream_), "cudaStreamSynchronize", context_.ordinal);
}

void CudaDevice::add_stream(CudaStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
  // So that neither list has to grow in a destructor, and the second does not grow for ever.
  forget_done_streams();
  retired_.reserve(retired_.size() + streams_.size());
}

void CudaDevice::remove_stream(const CudaStream* stream) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

void CudaDevice::retire_stream(cudaStream_t stream, const CudaStream* owner) {
  const QuietDeviceGuard guard(context_);
  const RelaxedCapture relaxed;
  {
    // At once, so that synchronize() finds the stream in one list or the other.
    const std::lock_guard lock(mutex_);
    std::erase(streams_, owner);
    const cudaError_t state = guard ? cudaStreamQuery(stream) : cudaErrorCudartUnloading;
    if (state == cudaErrorCudartUnloading) return;
    try {
      if (!ready(state, "cudaStreamQuery", context_.ordinal)) {
        PooledEvent last(events_);
        check(cudaEventRecord(last.get(), stream), "cudaEventRecord", context_.ordinal);
        retired_.push_back(std::move(last));
      }
    } catch (const std::exception& e) {
      log_lost(e.what());
    }
  }
  check_quietly(cudaStreamDestroy(stream), "cudaStreamDestroy", context_.ordinal);
}

void CudaDevice::forget_done_streams() {
  std::erase_if(retired_, [](const PooledEvent& last) { return last.done(); });
}

void CudaDevice::synchronize(Deadline deadline) {
  const DeviceGuard guard(context_);
  // Tasks give no work to streams here, so that one look at each stream suffices. An event holds the place of a stream,
  // and the mutex its handle, only while the events are recorded.
  std::vector<PooledEvent> marks;
  {
    const std::lock_guard lock(mutex_);
    for (const CudaStream* stream : streams_) marks.push_back(stream->mark());
  }
  const bool done = poll_until(deadline, [&] {
    std::erase_if(marks, [](const PooledEvent& mark) { return mark.done(); });
    const std::lock_guard lock(mutex_);
    forget_done_streams();
    return marks.empty() && retired_.empty();
  });
  reap();
  if (!done) {
    throw Error(ErrorCode::timeout, fmt::format("the device {} was not done at the deadline: {} streams have work left",
                                                context_.ordinal, marks.size()));
  }
  failure_->throw_if_failed();
}

}  // namespace tandem::detail::cuda
