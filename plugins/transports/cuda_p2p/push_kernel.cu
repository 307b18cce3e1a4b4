// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cuda/atomic>

#include "device/cuda/preload.hpp"
#include "transports/cuda_p2p/push_kernel.hpp"

namespace tandem::cuda_p2p {
namespace {

constexpr int block_threads = 512;
// Enough to fill a link, few enough to leave the GPU to others.
constexpr std::uint64_t most_blocks = 32;
constexpr std::uint64_t bytes_of_a_block = 16 * block_threads * 2;

template <class Unit>
__device__ void copy_piece(const KernelPush::Piece& piece) {
  const std::uint64_t units = piece.bytes / sizeof(Unit);
  const auto* const from = static_cast<const Unit*>(piece.from);
  auto* const to = static_cast<Unit*>(piece.to);
  const std::uint64_t step = std::uint64_t{gridDim.x} * block_threads;
#pragma unroll 4
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * block_threads + threadIdx.x; i < units; i += step) to[i] = from[i];
}

__global__ void __launch_bounds__(block_threads) push_pieces(const __grid_constant__ KernelPush push) {
  for (std::uint32_t p = 0; p < push.piece_count; ++p) {
    const KernelPush::Piece& piece = push.pieces[p];
    const auto bits =
        reinterpret_cast<std::uint64_t>(piece.to) | reinterpret_cast<std::uint64_t>(piece.from) | piece.bytes;
    if (bits % sizeof(uint4) == 0) {
      copy_piece<uint4>(piece);
    } else if (bits % sizeof(std::uint32_t) == 0) {
      copy_piece<std::uint32_t>(piece);
    } else {
      copy_piece<unsigned char>(piece);
    }
  }
  // The last block to come raises the words: what all blocks wrote is visible to the whole system by then.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> done(*push.blocks_done);
  if (done.fetch_add(1, cuda::memory_order_acq_rel) + 1 != gridDim.x) return;
  done.store(0, cuda::memory_order_relaxed);
  __threadfence_system();
  for (std::uint32_t w = 0; w < push.word_count; ++w) {
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system> word(*push.words[w]);
    word.store(1, cuda::memory_order_release);
  }
}

const bool registered = detail::cuda::register_kernel(push_pieces);

}  // namespace

cudaError_t push_by_kernel(cudaStream_t stream, const KernelPush& push) {
  std::uint64_t bytes = 0;
  for (std::uint32_t p = 0; p < push.piece_count; ++p) bytes += push.pieces[p].bytes;
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>((bytes + bytes_of_a_block - 1) / bytes_of_a_block, 1, most_blocks);
  push_pieces<<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(push);
  return cudaGetLastError();
}

}  // namespace tandem::cuda_p2p
