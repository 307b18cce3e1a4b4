// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "device/cuda/check.hpp"
#include "device/cuda/device.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/native.hpp"
#include "device/cuda/poll.hpp"
#include "device/cuda/rows.hpp"
#include "device/cuda/signal.hpp"
#include "tandem/trace.hpp"

namespace tandem::detail::cuda {

namespace {

std::uint64_t id_of(cudaStream_t stream, int ordinal) {
  unsigned long long id = 0;
  check(cudaStreamGetId(stream, &id), "cudaStreamGetId", ordinal);
  return id;
}

}  // namespace

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device, cudaStream_t stream, bool owned,
                       std::shared_ptr<TaskOwner> owner)
    : device_(std::move(device)),
      stream_(stream),
      owned_(owned),
      owner_(std::move(owner)),
      id_(id_of(stream, device_->context().ordinal)) {
  device_->add_stream(this);
}

CudaStream::~CudaStream() {
  // In a task the CUDA stream has to wait for a reap(): by then there may be another object at this address.
  const bool later = in_host_task();
  if (!owned_ || later) device_->remove_stream(this);
  if (owned_) {
    outside_tasks(
        [device = device_, stream = stream_, self = later ? nullptr : this] { device->retire_stream(stream, self); });
  }
  reap();
}

DeviceImpl& CudaStream::device() const { return *device_; }
std::shared_ptr<DeviceImpl> CudaStream::device_handle() const { return device_; }
const Context& CudaStream::context() const noexcept { return device_->context(); }

void CudaStream::wait(EventImpl& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  if (cuda_event == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("stream '{}' of a GPU waits for an event of a host device", name()));
  }
  if (!cuda_event->recorded()) return;
  const DeviceGuard guard(context());
  check(cudaStreamWaitEvent(stream_, cuda_event->get(), 0), "cudaStreamWaitEvent", context().ordinal);
}

void CudaStream::record(EventImpl& event) {
  auto* cuda_event = dynamic_cast<CudaEvent*>(&event);
  if (cuda_event == nullptr || cuda_event->context().ordinal != context().ordinal) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("stream '{}' of device {} records an event of another device", name(), context().ordinal));
  }
  const DeviceGuard guard(context());
  check(cudaEventRecord(cuda_event->get(), stream_), "cudaEventRecord", context().ordinal);
  cuda_event->set_recorded();
}

void CudaStream::wait(std::shared_ptr<const SignalImpl> signal,
                      std::function<void(std::int64_t, std::int64_t)> on_wait) {
  const auto* cuda_signal = dynamic_cast<const CudaSignal*>(signal.get());
  if (cuda_signal == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("stream '{}' of a GPU waits for a signal of a host device", name()));
  }
  const DeviceGuard guard(context());
  reap();
  if (signal->is_set()) {
    // What its setter wrote is visible to the work that is given from here on.
    if (on_wait) {
      launch([on_wait = std::move(on_wait)] {
        const std::int64_t now = now_ns();
        on_wait(now, now);
      });
    }
    return;
  }
  struct Begin {
    std::int64_t ns = 0;
    bool stalled = false;
  };
  std::shared_ptr<Begin> begin;
  if (on_wait) {
    begin = std::make_shared<Begin>();
    launch([begin, signal] {
      begin->ns = now_ns();
      begin->stalled = !signal->is_set();
    });
  }
  const SignalWord& word = cuda_signal->word();
  check(driver().cuStreamWaitValue32(stream_, reinterpret_cast<std::uintptr_t>(word.value), word.target,
                                     CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32", context().ordinal);
  if (on_wait) {
    launch([begin, on_wait = std::move(on_wait)] { on_wait(begin->ns, begin->stalled ? now_ns() : begin->ns); });
  }
}

void CudaStream::copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(context());
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync", context().ordinal);
}

void CudaStream::run(std::function<void()> task) {
  if (!task) throw Error(ErrorCode::invalid_argument, "stream '" + name() + "' was given an empty task");
  const DeviceGuard guard(context());
  reap();
  launch(std::move(task));
}

std::shared_ptr<const MarkImpl> CudaStream::leave_mark() {
  if (capture() != 0) {
    throw Error(ErrorCode::invalid_usage, fmt::format("stream '{}' cannot leave a mark while captured", name()));
  }
  const DeviceGuard guard(context());
  reap();
  auto mark = std::make_shared<CudaMark>(context());
  const SignalWord& word = mark->word();
  check(driver().cuStreamWriteValue32(stream_, reinterpret_cast<std::uintptr_t>(word.value), word.target,
                                      CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32", context().ordinal);
  return mark;
}

std::uint64_t CudaStream::capture() const {
  const DeviceGuard guard(context());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream_, &status, &id), "cudaStreamGetCaptureInfo", context().ordinal);
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

void CudaStream::move_rows(const RowRuns& runs, std::span<const RowMove> moves,
                           const std::shared_ptr<const void>& /*keep*/) {
  cuda::move_rows({stream_, context()}, runs, moves);
}

void CudaStream::round_rows(const RowRuns& runs, const RowRounding& rounding,
                            const std::shared_ptr<const void>& /*keep*/) {
  cuda::round_rows({stream_, context()}, runs, rounding);
}

void CudaStream::sum_rows(const RowSum& sum, const std::shared_ptr<const void>& /*keep*/) {
  cuda::sum_rows({stream_, context()}, sum);
}

void CudaStream::launch(std::function<void()> task) {
  launch_host_task(stream_, context().ordinal, owner_, std::move(task));
}

PooledEvent CudaStream::mark() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing", context().ordinal);
  if (status != cudaStreamCaptureStatusNone) {
    throw Error(ErrorCode::invalid_usage, fmt::format("stream '{}' cannot be synchronized while captured", name()));
  }
  PooledEvent event(device_->events());
  check(cudaEventRecord(event.get(), stream_), "cudaEventRecord", context().ordinal);
  return event;
}

void CudaStream::synchronize(Deadline deadline) {
  const DeviceGuard guard(context());
  const PooledEvent event = mark();
  const bool done = poll_until(deadline, [&] { return event.done(); });
  reap();
  if (!done) {
    throw Error(ErrorCode::timeout, fmt::format("stream '{}' was not done at the deadline", name()));
  }
  owner_->failure.throw_if_failed();
}

bool CudaStream::idle() const {
  const DeviceGuard guard(context());
  const RelaxedCapture relaxed;
  return ready(cudaStreamQuery(stream_), "cudaStreamQuery", context().ordinal);
}

NativeStream native_stream(const Stream& stream) {
  const auto* cuda_stream = dynamic_cast<const CudaStream*>(&stream.impl());
  if (cuda_stream == nullptr) {
    throw Error(ErrorCode::invalid_argument, fmt::format("stream '{}' is the host's, not a GPU's", stream.name()));
  }
  return {cuda_stream->get(), cuda_stream->context()};
}

}  // namespace tandem::detail::cuda
