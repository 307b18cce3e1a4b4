// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem::testing_p2p {

/// words[i] := pattern(seed + *step, i). `step` is read when the kernel runs, so that replays of a graph differ.
void fill(cudaStream_t stream, std::uint32_t* words, std::size_t count, std::uint32_t seed, const std::uint32_t* step);
/// *wrong += the number of words that are not those of fill(); then they are overwritten with poison.
void check_and_poison(cudaStream_t stream, std::uint32_t* words, std::size_t count, std::uint32_t seed,
                      const std::uint32_t* step, unsigned long long* wrong);
/// *step += 1
void advance(cudaStream_t stream, std::uint32_t* step);
/// Keeps a multiprocessor busy.
void spin(cudaStream_t stream, std::uint64_t nanoseconds);

}  // namespace tandem::testing_p2p
