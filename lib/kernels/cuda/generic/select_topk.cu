// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/kernels.hpp"
#include "kernels/cuda/generic/topk_output.cuh"
#include "kernels/cuda/generic/topk_select.cuh"

namespace tandem::detail::cuda::generic {
namespace {

/// As much as the indexer has: room for candidates beside the K best.
constexpr int most_spare = 2048;

struct SelectArgument {
  Rows<const float> scores;
  const int* bounds;  ///< [s, 2]
  int capacity;       ///< of candidates
  ListOutput out;
};

/// One block for each row.
__global__ void __launch_bounds__(block_threads) select_scores(SelectArgument a) {
  __shared__ SelectorMemory memory;
  __shared__ int sums[block_warps];
  auto* const candidates = static_cast<std::uint64_t*>(dynamic_shared());
  const int row = static_cast<int>(blockIdx.x);
  const int begin = a.bounds[2 * std::int64_t{row}];
  const int end = a.bounds[2 * std::int64_t{row} + 1];
  if (end - begin <= a.out.topk) {
    write_range(a.out, row, begin, end);
    return;
  }
  TopkSelector selector(candidates, a.capacity, a.out.topk, memory);
  const float* const scores = a.scores.at(row);
  int nans = 0;
  // Counted from `begin`: a landed row may be near the largest int.
  for (int first = 0; first < end - begin; first += block_threads) {
    const bool seen = static_cast<int>(threadIdx.x) < end - begin - first;
    const int landed = begin + first + static_cast<int>(threadIdx.x);
    const float score = seen ? scores[landed] : 0.0F;
    const bool nan = score != score;
    nans += nan ? 1 : 0;
    selector.offer(seen && !nan ? rank_key(score, landed) : 0);
  }
  selector.finish();
  write_list(a.out, row, candidates, selector.count());
  add_nans(a.out, block_sum(nans, sums));
}

const bool registered = register_kernel(select_scores);

}  // namespace

void select_topk(const NativeStream& stream, const ScoreMatrix& in, const TopkLists& out) {
  const int topk = static_cast<int>(in.topk);
  const int most = static_cast<int>(most_shared / sizeof(std::uint64_t));
  const int capacity = topk + std::min(most_spare, most - topk);
  const SelectArgument a{rows_of<const float>(in.scores), in.bounds.data_as<const int>(), capacity,
                         list_output(out, in.topk)};
  launch(stream, select_scores, a, in.scores.size(0), 1, static_cast<std::size_t>(capacity) * sizeof(std::uint64_t));
}

}  // namespace tandem::detail::cuda::generic
