// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/pusher.hpp"

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"

namespace tandem::cuda_p2p {

using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::driver;

namespace {

constexpr std::size_t most_at_once = 255;  // operations of one batch that CUDA takes

CUdeviceptr address_of(const Board::Word& word) { return reinterpret_cast<CUdeviceptr>(&word); }

CUstreamBatchMemOpParams write(const Board::Word& word, std::uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = address_of(word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // what the stream wrote before is visible first
  return op;
}

/// Which capture the stream takes part in; 0 is none.
unsigned long long capture_of(cudaStream_t stream, int ordinal) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo", ordinal);
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

}  // namespace

Pusher::Pusher(const detail::cuda::Context& context) : context_(context) {
  const detail::cuda::DeviceGuard guard(context_);
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", context_.ordinal);
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority",
        context_.ordinal);
  const cudaError_t made = cudaEventCreateWithFlags(&pushed_, cudaEventDisableTiming);
  if (made != cudaSuccess) static_cast<void>(cudaStreamDestroy(stream_));
  check(made, "cudaEventCreateWithFlags", context_.ordinal);
}

Pusher::~Pusher() {
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (!guard) return;
  check_quietly(cudaEventDestroy(pushed_), "cudaEventDestroy", context_.ordinal);
  check_quietly(cudaStreamDestroy(stream_), "cudaStreamDestroy", context_.ordinal);
}

void Pusher::follow(cudaEvent_t event) {
  check(driver().cuStreamWaitEvent(stream_, event, 0), "cuStreamWaitEvent", context_.ordinal);
}

void Pusher::await_ready(const Board::Word& ready) {
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[0].waitValue.address = address_of(ready);
  ops[0].waitValue.value = 1;
  ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  ops[1] = write(ready, 0);
  check(driver().cuStreamBatchMemOp(stream_, 2, ops, 0), "cuStreamBatchMemOp", context_.ordinal);
}

void Pusher::copy(void* destination, const void* source, std::uint64_t bytes) {
  check(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
        "cudaMemcpyAsync", context_.ordinal);
}

void Pusher::raise(const Board::Word& arrival) {
  check(driver().cuStreamWriteValue32(stream_, address_of(arrival), 1, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32", context_.ordinal);
}

void Pusher::mark() {
  check(cudaEventRecord(pushed_, stream_), "cudaEventRecord", context_.ordinal);
  marked_ = true;
  marked_in_ = capture_of(stream_, context_.ordinal);
}

void Pusher::join(cudaStream_t stream) const {
  if (!marked_ || capture_of(stream, context_.ordinal) != marked_in_) return;
  check(driver().cuStreamWaitEvent(stream, pushed_, 0), "cuStreamWaitEvent", context_.ordinal);
}

bool Pusher::idle() const { return detail::cuda::ready(cudaStreamQuery(stream_), "cudaStreamQuery", context_.ordinal); }

void wait_raised(cudaStream_t stream, const Board::Word& word, int ordinal) {
  check(driver().cuStreamWaitValue32(stream, address_of(word), 1, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32",
        ordinal);
}

void reset_then_raise(cudaStream_t stream, std::span<const Board::Word* const> reset,
                      std::span<const Board::Word* const> raise, int ordinal) {
  std::vector<CUstreamBatchMemOpParams> ops;
  ops.reserve(reset.size() + raise.size());
  for (const Board::Word* word : reset) ops.push_back(write(*word, 0));
  for (const Board::Word* word : raise) ops.push_back(write(*word, 1));
  for (std::size_t i = 0; i < ops.size(); i += most_at_once) {
    const auto count = static_cast<unsigned>(std::min(most_at_once, ops.size() - i));
    check(driver().cuStreamBatchMemOp(stream, count, &ops[i], 0), "cuStreamBatchMemOp", ordinal);
  }
}

}  // namespace tandem::cuda_p2p
