// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/pusher.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>

#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/words.hpp"
#include "tandem/error.hpp"

namespace tandem::cuda_p2p {

using detail::cuda::capture_of;
using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::driver;
using detail::cuda::reset_then_raise;

namespace {

CUdeviceptr address_of(const Board::Word& word) { return reinterpret_cast<CUdeviceptr>(&word); }

cudaStream_t create_stream(int ordinal) {
  int lowest = 0, highest = 0;
  cudaStream_t stream = nullptr;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", ordinal);
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority", ordinal);
  return stream;
}

}  // namespace

Pusher::Pusher(const detail::cuda::Context& context, std::size_t streams) : context_(context), lanes_(streams) {
  const detail::cuda::DeviceGuard guard(context_);
  const auto create_event = [&](cudaEvent_t& event) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", context_.ordinal);
  };
  try {
    for (Lane& lane : lanes_) {
      lane.stream = create_stream(context_.ordinal);
      create_event(lane.read);
    }
    create_event(begun_);
    create_event(ended_);
    check(cudaMalloc(reinterpret_cast<void**>(&blocks_done_), sizeof(unsigned)), "cudaMalloc", context_.ordinal);
    check(cudaMemset(blocks_done_, 0, sizeof(unsigned)), "cudaMemset", context_.ordinal);
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
  const auto destroy_event = [&](cudaEvent_t event) {
    if (event != nullptr) check_quietly(cudaEventDestroy(event), "cudaEventDestroy", context_.ordinal);
  };
  for (const Lane& lane : lanes_) {
    destroy_event(lane.read);
    if (lane.stream != nullptr) check_quietly(cudaStreamDestroy(lane.stream), "cudaStreamDestroy", context_.ordinal);
  }
  destroy_event(begun_);
  destroy_event(ended_);
  if (blocks_done_ != nullptr) check_quietly(cudaFree(blocks_done_), "cudaFree", context_.ordinal);
}

void Pusher::record(cudaEvent_t event, cudaStream_t stream) const {
  check(cudaEventRecord(event, stream), "cudaEventRecord", context_.ordinal);
}

void Pusher::hold(cudaStream_t stream, cudaEvent_t event) const {
  check(driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent", context_.ordinal);
}

void Pusher::begin(cudaEvent_t source, const Board::Word* ready) {
  Lane& first = lanes_.front();
  hold(first.stream, source);
  if (ready != nullptr) {
    CUstreamBatchMemOpParams ops[2] = {};
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[0].waitValue.address = address_of(*ready);
    ops[0].waitValue.value = 1;
    ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[1].writeValue.address = address_of(*ready);
    ops[1].writeValue.value = 0;
    ops[1].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    check(driver().cuStreamBatchMemOp(first.stream, 2, ops, 0), "cuStreamBatchMemOp", context_.ordinal);
  }
  record(begun_, first.stream);
  for (Lane& lane : lanes_) lane.used = false;
  first.used = true;
}

Pusher::Lane& Pusher::lane_of(std::size_t chunk) {
  Lane& lane = lanes_[chunk % lanes_.size()];
  if (!lane.used) hold(lane.stream, begun_);
  lane.used = true;
  return lane;
}

void Pusher::copy(std::size_t chunk, void* destination, const void* source, std::uint64_t bytes) {
  check(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                        lane_of(chunk).stream),
        "cudaMemcpyAsync", context_.ordinal);
}

void Pusher::raise(std::size_t chunk, const Board::Word& arrival) {
  Lane& lane = lane_of(chunk);
  mark_read(lane);
  check(driver().cuStreamWriteValue32(lane.stream, address_of(arrival), 1, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32", context_.ordinal);
}

void Pusher::push(std::span<const KernelPush::Piece> pieces, std::span<const Board::Word* const> words) {
  KernelPush launch;
  std::copy(pieces.begin(), pieces.end(), launch.pieces);
  for (const Board::Word* word : words)
    launch.words[launch.word_count++] = reinterpret_cast<std::uint32_t*>(const_cast<Board::Word*>(word));
  launch.piece_count = static_cast<std::uint32_t>(pieces.size());
  launch.blocks_done = blocks_done_;
  check(push_by_kernel(lanes_.front().stream, launch), "a kernel that pushes", context_.ordinal);
  mark_read(lanes_.front());
}

void Pusher::mark_read(Lane& lane) const {
  record(lane.read, lane.stream);
  lane.has_read = true;
  lane.read_in = capture_of(lane.stream, context_.ordinal);
}

void Pusher::end(const Board::Word* sent) {
  if (sent == nullptr) return;
  // Of earlier posts as well: the word stands for the whole operation.
  const Lane& first = lanes_.front();
  const unsigned long long capture = capture_of(first.stream, context_.ordinal);
  for (const Lane& lane : lanes_) {
    if (&lane != &first && lane.has_read && lane.read_in == capture) hold(first.stream, lane.read);
  }
  reset_then_raise(first.stream, {}, std::array{sent}, context_.ordinal);
}

void Pusher::join(cudaStream_t stream) const {
  const unsigned long long capture = capture_of(stream, context_.ordinal);
  for (const Lane& lane : lanes_) {
    if (capture == 0) {
      if (lane.has_read && lane.read_in == 0) hold(stream, lane.read);
    } else if (capture_of(lane.stream, context_.ordinal) == capture) {
      // Behind its flags, too: nothing of a graph may lead nowhere.
      record(ended_, lane.stream);
      hold(stream, ended_);
    }
  }
}

bool Pusher::idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return detail::cuda::ready(cudaStreamQuery(lane.stream), "cudaStreamQuery", context_.ordinal);
  });
}

}  // namespace tandem::cuda_p2p
