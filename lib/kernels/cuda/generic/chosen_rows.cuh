// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/generic/kernels.hpp"

/// The rows that a kernel is for: all of a range, a block for each; or those that an earlier kernel chose. How many
/// they are only the GPU knows, so that fewer blocks than rows take them by turns: blocks that find nothing to do are
/// cheap as long as they are few.
namespace tandem::detail::cuda::generic {

class KernelRows {
 public:
  KernelRows() = default;
  KernelRows(RowRange all, const ChosenRows* chosen) : first_(all.begin), all_(all.size()) {
    if (chosen != nullptr) chosen_ = *chosen;
  }

  /// Blocks along the rows if there are `layers` of them for each.
  std::int64_t blocks(std::int64_t layers) const {
    constexpr std::int64_t enough = 512;  // to fill a GPU
    if (chosen_.rows == nullptr) return all_;
    return std::min(all_, std::max<std::int64_t>(1, enough / std::max<std::int64_t>(1, layers)));
  }

  __device__ std::int64_t first() const { return first_; }
  __device__ std::int64_t all() const { return all_; }
  /// Calls visit(row) for this block's rows, one after the other, with a barrier in front of each.
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    const std::int64_t count = chosen_.rows == nullptr ? all_ : *chosen_.count;
    for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
      __syncthreads();
      visit(chosen_.rows == nullptr ? first_ + i : static_cast<std::int64_t>(chosen_.rows[i]));
    }
  }
  /// Calls visit(row) for all of the rows in their order, whichever block this is.
  template <class Visit>
  __device__ void for_each_in_order(const Visit& visit) const {
    if (chosen_.rows != nullptr && *chosen_.count == 0) return;
    for (std::int64_t row = first_; row < first_ + all_; ++row) {
      if (chosen_.flags != nullptr && chosen_.flags[row] == 0) continue;
      __syncthreads();
      visit(row);
    }
  }

 private:
  std::int64_t first_ = 0, all_ = 0;
  ChosenRows chosen_ = {};
};

}  // namespace tandem::detail::cuda::generic
