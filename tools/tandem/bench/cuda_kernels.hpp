// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// The kernels of a benchmark. Each call enqueues one.
namespace tandem::cli::kernels {

/// As BenchData. `to` and `found` are aligned to 8 bytes.
void fill(cudaStream_t stream, void* to, std::uint64_t bytes, std::uint64_t first, std::uint64_t salt);
void fill_terms(cudaStream_t stream, float* to, std::uint64_t count, std::uint64_t first, int rank, std::uint64_t salt);
/// *wrong += what differs.
void check(cudaStream_t stream, const void* found, std::uint64_t bytes, std::uint64_t first, std::uint64_t salt,
           unsigned long long* wrong);
void check_sums(cudaStream_t stream, const float* found, std::uint64_t count, std::uint64_t first, int first_rank,
                int ranks, std::uint64_t salt, unsigned long long* wrong);
/// bf16 numbers between -1 and 1.
void fill_matrix(cudaStream_t stream, std::uint16_t* to, std::uint64_t count, std::uint64_t salt);
/// Keeps all multiprocessors at work on arithmetic for so long. `sink` is never written.
void heat(cudaStream_t stream, std::uint64_t nanoseconds, float* sink);

}  // namespace tandem::cli::kernels
