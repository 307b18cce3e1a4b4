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
  constexpr int groups = 4;  // at a time: a branch for each alone costs more, and registers for all of them spill
  static_assert(Count % (8 * groups) == 0);
  const bool odd = (lane & 1) != 0;
  const int at = column + (odd ? 8 : 0) + (lane & 2) * 2;
#pragma unroll
  for (int first = 0; first < Count / 8; first += groups) {
    float4 fours[groups][2];
#pragma unroll
    for (int i = 0; i < 2 * groups; ++i) {
      const int even_at = 8 * (first + i / 2) + 2 * (i % 2), odd_at = even_at + 4;
      const float x = __shfl_xor_sync(whole_warp, odd ? acc[even_at] : acc[odd_at], 1);
      const float y = __shfl_xor_sync(whole_warp, odd ? acc[even_at + 1] : acc[odd_at + 1], 1);
      fours[i / 2][i % 2] =
          odd ? make_float4(x, y, acc[odd_at], acc[odd_at + 1]) : make_float4(acc[even_at], acc[even_at + 1], x, y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to = to_rows[half] + at;
      if (to_rows[half] == nullptr) continue;
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        const float4 four = fours[i][half];
        if constexpr (Store) {
          *reinterpret_cast<float4*>(to + 16 * (first + i)) = four;
        } else {
          add_four(to + 16 * (first + i), four.x, four.y, four.z, four.w);
        }
      }
    }
  }
}

}  // namespace tandem::detail::sm90
