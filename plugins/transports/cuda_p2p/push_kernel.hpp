// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem::cuda_p2p {

/// What one launch moves, and the words that it raises when all of it is there. It goes to the kernel by value.
struct KernelPush {
  static constexpr std::size_t most_pieces = 16;
  static constexpr std::size_t most_words = 16;
  struct Piece {
    void* to = nullptr;
    const void* from = nullptr;
    std::uint64_t bytes = 0;
  };
  Piece pieces[most_pieces];
  std::uint32_t* words[most_words];  ///< in host memory
  std::uint32_t piece_count = 0;
  std::uint32_t word_count = 0;
  unsigned* blocks_done = nullptr;  ///< device memory, 0 between launches
};

/// Copies by multiprocessors: for small pushes, where the way to a copy engine and back takes longer than the bytes.
/// Returns what the launch returned.
cudaError_t push_by_kernel(cudaStream_t stream, const KernelPush& push);

}  // namespace tandem::cuda_p2p
