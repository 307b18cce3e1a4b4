// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/bf16.cuh"
#include "device/cuda/e4m3.cuh"

/// What the kernels read and write, bf16 or f32, and how; of indexer inputs also e4m3, which is only read.
namespace tandem::detail::cuda::generic {

struct Bf16 {
  std::uint16_t bits;
};
struct E4m3 {
  std::uint8_t bits;
};

/// Of what gradients by a T are.
template <class T>
struct GradientOf {
  using Type = T;
};
template <>
struct GradientOf<E4m3> {
  using Type = float;
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return float_from_bf16(x.bits); }
__device__ inline float widen(E4m3 x) { return float_from_e4m3(x.bits); }
__device__ inline void narrow(float x, float& to) { to = x; }
__device__ inline void narrow(float x, Bf16& to) { to.bits = static_cast<std::uint16_t>(bf16_from_float(x)); }

/// Rows of vectors, [rows, inner, columns]; strides count elements.
template <class T>
struct Rows {
  T* data;
  std::int64_t row_stride;
  std::int64_t inner_stride;

  __device__ T* at(std::int64_t row, std::int64_t inner = 0) const {
    return data + row * row_stride + inner * inner_stride;
  }
};

/// a . b over `columns`, both in shared memory and 16-byte aligned, in one order of operations: four chains, column c
/// in chain c mod 4, added in pairs.
template <int columns>
__device__ inline float dot(const float* a, const float* b) {
  float sum[4] = {};
#pragma unroll 8
  for (int c = 0; c < columns; c += 4) {
    const float4 x = *reinterpret_cast<const float4*>(a + c);
    const float4 y = *reinterpret_cast<const float4*>(b + c);
    sum[0] = __fmaf_rn(x.x, y.x, sum[0]);
    sum[1] = __fmaf_rn(x.y, y.y, sum[1]);
    sum[2] = __fmaf_rn(x.z, y.z, sum[2]);
    sum[3] = __fmaf_rn(x.w, y.w, sum[3]);
  }
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

}  // namespace tandem::detail::cuda::generic
