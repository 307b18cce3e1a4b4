// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "key_tiles.cuh"

namespace tandem::detail::sm90 {

/// Where a product's rows lane / 4 and lane / 4 + 8 of a warp go in global memory, if they go anywhere. That is a flag
/// and not a null pointer: ptxas 13.0 reads such a pointer before the zeros of lanes without one have been written.
struct ScatterRows {
  float* to[2];
  bool there[2];
};

/// Adds a product's 2 Count columns to columns `column` and on of this warp's rows. `Store`: writes them instead. A
/// thread has two columns of eight and two rows; lanes of a pair exchange, so that each adds four columns, and four
/// lanes 64 bytes of a row.
template <bool Store, int Count>
__device__ __forceinline__ void scatter_columns(const float (&acc)[Count], const ScatterRows& rows, int column,
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
      if (!rows.there[half]) continue;
      float* const to = rows.to[half] + at;
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
