// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/cuda_timer.hpp"

#include <algorithm>
#include <memory>

#include "device/cuda/check.hpp"
#include "device/cuda/native.hpp"
#include "tandem/bench/cuda_kernels.hpp"
#include "tandem/bench/cuda_parts.hpp"

namespace tandem::cli {

using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::DeviceGuard;
using detail::cuda::native_stream;

namespace {

constexpr std::uint64_t warm_up_ns = 20'000'000;

std::size_t cache_bytes(const detail::cuda::Context& context) {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, context.ordinal), "cudaDeviceGetAttribute",
        context.ordinal);
  return static_cast<std::size_t>(bytes);
}

class Graph {
 public:
  explicit Graph(const detail::cuda::Context& context) : context_(context) {}
  ~Graph() {
    const detail::cuda::QuietDeviceGuard guard(context_);
    if (guard && executable_ != nullptr)
      check_quietly(cudaGraphExecDestroy(executable_), "cudaGraphExecDestroy", context_.ordinal);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void capture(const Stream& stream, const BenchTimer::Enqueue& work, int count) {
    const cudaStream_t native = native_stream(stream).handle;
    const DeviceGuard guard(context_);
    check(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", context_.ordinal);
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < count; ++i) work(stream);
    } catch (...) {
      if (cudaStreamEndCapture(native, &graph) == cudaSuccess) static_cast<void>(cudaGraphDestroy(graph));
      static_cast<void>(cudaGetLastError());
      throw;
    }
    check(cudaStreamEndCapture(native, &graph), "cudaStreamEndCapture", context_.ordinal);
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    check(made, "cudaGraphInstantiate", context_.ordinal);
    check(cudaGraphUpload(executable_, native), "cudaGraphUpload", context_.ordinal);
  }
  void launch(const Stream& stream) const {
    const DeviceGuard guard(context_);
    check(cudaGraphLaunch(executable_, native_stream(stream).handle), "cudaGraphLaunch", context_.ordinal);
  }

 private:
  const detail::cuda::Context context_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

TimedEvent::TimedEvent(const detail::cuda::Context& context) : context_(context) {
  const DeviceGuard guard(context_);
  check(cudaEventCreate(&event_), "cudaEventCreate", context_.ordinal);
}

TimedEvent::~TimedEvent() {
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (guard) check_quietly(cudaEventDestroy(event_), "cudaEventDestroy", context_.ordinal);
}

void TimedEvent::record(const Stream& stream) const {
  const DeviceGuard guard(context_);
  check(cudaEventRecord(event_, native_stream(stream).handle), "cudaEventRecord", context_.ordinal);
}

void TimedEvent::hold(const Stream& stream) const {
  const DeviceGuard guard(context_);
  check(cudaStreamWaitEvent(native_stream(stream).handle, event_, 0), "cudaStreamWaitEvent", context_.ordinal);
}

double TimedEvent::since(const TimedEvent& begin) const {
  const DeviceGuard guard(context_);
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime", context_.ordinal);
  return static_cast<double>(ms) * 1e3;
}

CudaTimer::CudaTimer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit)
    : comm_(comm),
      limit_(limit),
      stream_(comm.device().create_stream({.name = "bench"})),
      context_(native_stream(stream_).context),
      gate_(comm.device(), ranks),
      start_(context_),
      stop_(context_),
      more_than_the_cache_(comm.device().allocate(std::max<std::size_t>(2 * cache_bytes(context_), 64U << 20))) {}

std::string CudaTimer::describe() const {
  return gate_.shared() ? "CUDA events, all GPUs released together by words in shared memory"
                        : "CUDA events, behind a barrier of the hosts";
}

void CudaTimer::warm() {
  {
    const DeviceGuard guard(context_);
    kernels::heat(native_stream(stream_).handle, warm_up_ns, static_cast<float*>(more_than_the_cache_.data()));
    check(cudaGetLastError(), "a kernel's launch", context_.ordinal);
  }
  stream_.synchronize(Deadline::after(limit_));
}

void CudaTimer::flush_caches(const Stream& stream) const {
  const DeviceGuard guard(context_);
  check(cudaMemsetAsync(more_than_the_cache_.data(), 0, more_than_the_cache_.bytes(), native_stream(stream).handle),
        "cudaMemsetAsync", context_.ordinal);
}

void CudaTimer::open() {
  if (!gate_.shared()) comm_.barrier(Deadline::after(limit_));
  gate_.open();
}

void CudaTimer::run(const Stream& gated, std::initializer_list<const Stream*> streams,
                    const std::function<void(const std::function<void()>&)>& enqueue) {
  try {
    flush_caches(gated);
    gate_.close(gated);
    bool opened = false;
    const auto open_once = [&] {
      if (!std::exchange(opened, true)) open();
    };
    enqueue(open_once);
    open_once();
    for (const Stream* stream : streams) stream->synchronize(Deadline::after(limit_));
  } catch (...) {
    gate_.release();  // before memory is freed, which waits for the GPU
    throw;
  }
}

double CudaTimer::time(const Enqueue& work) {
  run(stream_, {&stream_}, [&](const auto&) {
    start_.record(stream_);
    work(stream_);
    stop_.record(stream_);
  });
  return stop_.since(start_);
}

// All of them behind the gate could fill the queue; from the first on the GPU is busy while the host goes ahead.
double CudaTimer::time_in_a_row(const Enqueue& work, int count) {
  run(stream_, {&stream_}, [&](const auto& open_gate) {
    start_.record(stream_);
    for (int i = 0; i < count; ++i) {
      work(stream_);
      open_gate();
    }
    stop_.record(stream_);
  });
  return stop_.since(start_) / count;
}

BenchTimer::Enqueue CudaTimer::capture(const Enqueue& work, int count) {
  const auto graph = std::make_shared<Graph>(context_);
  graph->capture(stream_, work, count);
  stream_.synchronize(Deadline::after(limit_));
  return [graph](const Stream& stream) { graph->launch(stream); };
}

std::unique_ptr<BenchTimer> make_cuda_timer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit) {
  return std::make_unique<CudaTimer>(comm, ranks, limit);
}

}  // namespace tandem::cli
