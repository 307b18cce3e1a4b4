// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/preload.hpp"
#include "gpu/p2p/kernels.hpp"

namespace tandem::testing_p2p {
namespace {

constexpr int threads = 256;
constexpr int blocks = 64;

__device__ std::uint32_t pattern(std::uint32_t seed, std::size_t i) {
  auto x = static_cast<std::uint32_t>(i) * 0x9E3779B9u + seed * 0x85EBCA6Bu;
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  x ^= x >> 12;
  return x;
}

__global__ void fill_kernel(std::uint32_t* words, std::size_t count, std::uint32_t seed, const std::uint32_t* step) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] = pattern(seed + *step, i);
}

__global__ void check_kernel(std::uint32_t* words, std::size_t count, std::uint32_t seed, const std::uint32_t* step,
                             unsigned long long* wrong) {
  unsigned long long mine = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    mine += words[i] != pattern(seed + *step, i);
    words[i] = 0xFFFFFFFFu;
  }
  if (mine > 0) atomicAdd(wrong, mine);
}

__global__ void advance_kernel(std::uint32_t* step) { *step += 1; }

__global__ void spin_kernel(std::uint64_t nanoseconds) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

const bool registered = detail::cuda::register_kernel(fill_kernel) && detail::cuda::register_kernel(check_kernel) &&
                        detail::cuda::register_kernel(advance_kernel) && detail::cuda::register_kernel(spin_kernel);

}  // namespace

void fill(cudaStream_t stream, std::uint32_t* words, std::size_t count, std::uint32_t seed, const std::uint32_t* step) {
  fill_kernel<<<blocks, threads, 0, stream>>>(words, count, seed, step);
}

void check_and_poison(cudaStream_t stream, std::uint32_t* words, std::size_t count, std::uint32_t seed,
                      const std::uint32_t* step, unsigned long long* wrong) {
  check_kernel<<<blocks, threads, 0, stream>>>(words, count, seed, step, wrong);
}

void advance(cudaStream_t stream, std::uint32_t* step) { advance_kernel<<<1, 1, 0, stream>>>(step); }

void spin(cudaStream_t stream, std::uint64_t nanoseconds) { spin_kernel<<<1, 1, 0, stream>>>(nanoseconds); }

}  // namespace tandem::testing_p2p
