// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tandem::detail::cuda {

// A bfloat16 is the upper half of a binary32.
__device__ inline float float_from_bf16(unsigned bits) { return __uint_as_float(bits << 16); }

// As bf16_from_float of the host: to nearest, ties to even, a NaN becomes a quiet one of the same sign.
__device__ inline unsigned bf16_from_float(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return (bits >> 16) | 0x40U;
  return (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
}

}  // namespace tandem::detail::cuda
