// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <span>

namespace tandem::detail::cuda {

/// A flag in host memory that is registered with CUDA: streams wait for it and write it, and so does the host. Its
/// values are 0 and 1, so that a captured graph can be replayed.
using Word = std::atomic<std::uint32_t>;

/// `stream` waits until the word is raised. The device must be current here and below.
void wait_raised(cudaStream_t stream, const Word& word, int ordinal);
/// Words become 0, then 1, in this order, as few stream operations as may be.
void reset_then_raise(cudaStream_t stream, std::span<const Word* const> reset, std::span<const Word* const> raise,
                      int ordinal);
/// The capture that the stream takes part in; 0 is none.
unsigned long long capture_of(cudaStream_t stream, int ordinal);

}  // namespace tandem::detail::cuda
