// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/pusher.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <vector>

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "tandem/error.hpp"

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

cudaStream_t create_stream(int ordinal) {
  int lowest = 0, highest = 0;
  cudaStream_t stream = nullptr;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", ordinal);
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority", ordinal);
  return stream;
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
  try {
    copies_ = create_stream(context_.ordinal);
    flags_ = create_stream(context_.ordinal);
    check(cudaMalloc(reinterpret_cast<void**>(&blocks_done_), sizeof(unsigned)), "cudaMalloc", context_.ordinal);
    check(cudaMemset(blocks_done_, 0, sizeof(unsigned)), "cudaMemset", context_.ordinal);
    for (cudaEvent_t* const event : {&copied_, &finished_, &end_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreateWithFlags", context_.ordinal);
  } catch (const Error&) {
    destroy();
    throw;
  }
}

Pusher::~Pusher() {
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (guard) destroy();
}

void Pusher::destroy() const noexcept {
  for (const cudaEvent_t event : {copied_, finished_, end_}) {
    if (event != nullptr) check_quietly(cudaEventDestroy(event), "cudaEventDestroy", context_.ordinal);
  }
  for (const cudaStream_t stream : {copies_, flags_}) {
    if (stream != nullptr) check_quietly(cudaStreamDestroy(stream), "cudaStreamDestroy", context_.ordinal);
  }
  if (blocks_done_ != nullptr) check_quietly(cudaFree(blocks_done_), "cudaFree", context_.ordinal);
}

void Pusher::follow(cudaEvent_t event) {
  check(driver().cuStreamWaitEvent(copies_, event, 0), "cuStreamWaitEvent", context_.ordinal);
}

void Pusher::await_ready(const Board::Word& ready) {
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[0].waitValue.address = address_of(ready);
  ops[0].waitValue.value = 1;
  ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  ops[1] = write(ready, 0);
  check(driver().cuStreamBatchMemOp(copies_, 2, ops, 0), "cuStreamBatchMemOp", context_.ordinal);
}

void Pusher::copy(void* destination, const void* source, std::uint64_t bytes) {
  check(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, copies_),
        "cudaMemcpyAsync", context_.ordinal);
}

void Pusher::push(std::span<const KernelPush::Piece> pieces, std::span<const Board::Word* const> words) {
  KernelPush launch;
  std::copy(pieces.begin(), pieces.end(), launch.pieces);
  for (const Board::Word* word : words)
    launch.words[launch.word_count++] = reinterpret_cast<std::uint32_t*>(const_cast<Board::Word*>(word));
  launch.piece_count = static_cast<std::uint32_t>(pieces.size());
  launch.blocks_done = blocks_done_;
  check(push_by_kernel(copies_, launch), "a kernel that pushes", context_.ordinal);
  finished();
}

void Pusher::raise(const Board::Word& word) {
  check(cudaEventRecord(copied_, copies_), "cudaEventRecord", context_.ordinal);
  check(driver().cuStreamWaitEvent(flags_, copied_, 0), "cuStreamWaitEvent", context_.ordinal);
  reset_then_raise(flags_, {}, std::array{&word}, context_.ordinal);
}

void Pusher::finish(std::span<const Board::Word* const> words) {
  finished();
  reset_then_raise(copies_, {}, words, context_.ordinal);
}

void Pusher::finished() {
  check(cudaEventRecord(finished_, copies_), "cudaEventRecord", context_.ordinal);
  finished_any_ = true;
  finished_in_ = capture_of(copies_, context_.ordinal);
}

void Pusher::join(cudaStream_t stream) const {
  if (!finished_any_ || capture_of(stream, context_.ordinal) != finished_in_) return;
  check(driver().cuStreamWaitEvent(stream, finished_, 0), "cuStreamWaitEvent", context_.ordinal);
  if (finished_in_ == 0) return;
  for (const cudaStream_t of_graph : {copies_, flags_}) {
    if (capture_of(of_graph, context_.ordinal) != finished_in_) continue;
    check(cudaEventRecord(end_, of_graph), "cudaEventRecord", context_.ordinal);
    check(driver().cuStreamWaitEvent(stream, end_, 0), "cuStreamWaitEvent", context_.ordinal);
  }
}

bool Pusher::idle() const {
  return detail::cuda::ready(cudaStreamQuery(copies_), "cudaStreamQuery", context_.ordinal) &&
         detail::cuda::ready(cudaStreamQuery(flags_), "cudaStreamQuery", context_.ordinal);
}

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
