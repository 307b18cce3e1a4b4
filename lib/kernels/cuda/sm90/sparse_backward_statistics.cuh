// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_backward_shared.cuh"

/// The sparse backward's first pass: what the other passes need to know of a row and head, and the sink's gradient.
/// A warp takes a row at a time, a block one head of several rows, so that it adds to dsink once.
namespace tandem::detail::sm90 {

constexpr int statistics_threads = 256, statistics_rows = 16;

/// Sum of products of eight bf16 pairs.
__device__ __forceinline__ float dot_eight(uint4 a, uint4 b) {
  const std::uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
    sum = fmaf(__uint_as_float(x[i] & 0xFFFF0000U), __uint_as_float(y[i] & 0xFFFF0000U), sum);
  }
  return sum;
}

/// Grid: blocks of rows x heads, those of the padding included.
static __global__ void __launch_bounds__(statistics_threads)
    sparse_backward_statistics_kernel(const __grid_constant__ SparseBackwardParams p) {
  __shared__ float sums[statistics_threads / 32];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.y);
  float dsink = 0.0F;
  for (int i = warp; i < statistics_rows; i += statistics_threads / 32) {
    const std::int64_t block_row = std::int64_t{blockIdx.x} * statistics_rows + i;
    if (block_row >= p.rows) break;
    const std::int64_t query = p.first_row + block_row;
    // Heads of the padding have P = 0.
    float lse_log2 = INFINITY, delta = 0.0F;
    if (head < p.heads && row_length(p, query) > 0) {
      const auto* out = reinterpret_cast<const uint4*>(p.out + query * p.out_row_stride + head * p.out_head_stride);
      const auto* dout = reinterpret_cast<const uint4*>(p.dout + query * p.dout_row_stride + head * p.dout_head_stride);
      delta = dot_eight(out[lane], dout[lane]) + dot_eight(out[lane + 32], dout[lane + 32]);
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) delta += __shfl_xor_sync(whole_warp, delta, distance);
      const float lse = p.lse[query * p.heads + head];
      lse_log2 = lse * log2_e;
      if (p.dsink != nullptr) {
        const float sink = p.sink[head];
        if (sink != -INFINITY) dsink -= expf(sink - lse) * delta;
      }
    }
    if (lane == 0) {
      HeadPair& pair = p.statistics[(block_row * p.head_blocks * block_heads + head) / 2];
      pair.lse_log2[head & 1] = lse_log2;
      pair.delta[head & 1] = delta;
    }
  }
  if (p.dsink == nullptr || head >= p.heads) return;
  if (lane == 0) sums[warp] = dsink;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0F;
    for (const float one : sums) sum += one;
    atomicAdd(p.dsink + head, sum);
  }
}

}  // namespace tandem::detail::sm90
