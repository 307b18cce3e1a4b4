// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "key_tiles.cuh"

namespace tandem::detail::sm90 {

/// Adds a product's 2 Count columns to columns `column` and on of rows in global memory: those that `to_rows` has, null
/// if there is none, for the product's rows lane / 4 and lane / 4 + 8 of this warp. `Store`: writes them instead. A
/// thread has two columns of eight and two rows; lanes of a pair exchange, so that each adds four columns, and four
/// lanes 64 bytes of a row.
template <bool Store, int Count>
__device__ __forceinline__ void scatter_columns(const float (&acc)[Count], float* const (&to_rows)[2], int column,
                                                int lane) {
  const bool odd = (lane & 1) != 0;
  const int at = column + (odd ? 8 : 0) + (lane & 2) * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool there = to_rows[half] != nullptr;
    float* const to = to_rows[half] + at;
#pragma unroll
    for (int group = 0; group < Count / 8; ++group) {
      const int even_at = 8 * group + 2 * half, odd_at = even_at + 4;
      const float x = __shfl_xor_sync(whole_warp, odd ? acc[even_at] : acc[odd_at], 1);
      const float y = __shfl_xor_sync(whole_warp, odd ? acc[even_at + 1] : acc[odd_at + 1], 1);
      const float own[2] = {odd ? acc[odd_at] : acc[even_at], odd ? acc[odd_at + 1] : acc[even_at + 1]};
      // A store has a branch: without one the compiler spills.
      if (Store && !there) continue;
      const float4 four = odd ? make_float4(x, y, own[0], own[1]) : make_float4(own[0], own[1], x, y);
      if constexpr (Store) {
        *reinterpret_cast<float4*>(to + 16 * group) = four;
      } else {
        add_four_if(there, to + 16 * group, four.x, four.y, four.z, four.w);
      }
    }
  }
}

}  // namespace tandem::detail::sm90
