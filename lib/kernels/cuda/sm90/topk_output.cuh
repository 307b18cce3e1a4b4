// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "topk_list.cuh"

/// What is made of a finished list, by all select warps.
namespace tandem::detail::sm90 {

/// ln(sum of exp(score)) over the keys of list[0, n) that are no less than `kth`; -infinity if there are none. The sum
/// is taken in fixed point relative to the greatest score, so it does not depend on the order of the list.
__device__ __forceinline__ float log_sum_exp(const std::uint64_t* list, int n, std::uint64_t kth,
                                             SelectScratch& scratch, int thread) {
  forget(thread);
  if (thread == 0) {
    scratch.maximum = 0;
    scratch.sum = 0;
  }
  select_sync();
  std::uint32_t greatest = 0;
#pragma unroll 8
  for (int i = thread; i < n; i += select_threads) greatest = max(greatest, static_cast<std::uint32_t>(list[i] >> 32));
  greatest = __reduce_max_sync(full_warp, greatest);
  if ((thread & 31) == 0) atomicMax(&scratch.maximum, greatest);
  select_sync();
  const float top = rank_key_score(static_cast<std::uint64_t>(scratch.maximum) << 32);
  if (n == 0 || isinf(top)) {
    select_sync();
    return n == 0 ? -INFINITY : top;
  }
  unsigned long long sum = 0;
#pragma unroll 4
  for (int i = thread; i < n; i += select_threads) {
    const std::uint64_t key = list[i];
    const float part = expf(rank_key_score(key) - top) * 1099511627776.0F;  // 2^40
    sum += key >= kth ? static_cast<unsigned long long>(part) : 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
  if ((thread & 31) == 0) atomicAdd(&scratch.sum, sum);
  select_sync();
  const auto total = static_cast<double>(scratch.sum);
  select_sync();
  return top + static_cast<float>(log(total * 0x1p-40));
}

}  // namespace tandem::detail::sm90
