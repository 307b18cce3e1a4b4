// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/cuda/generic/index_scores.cuh"
#include "kernels/cuda/generic/kernels.hpp"
#include "kernels/cuda/generic/topk_output.cuh"
#include "kernels/cuda/generic/topk_select.cuh"

namespace tandem::detail::cuda::generic {
namespace {

/// Room for candidates beside the K best: the more, the fewer cuts.
constexpr int most_spare = 2048;

template <class T>
struct TopkArgument {
  IndexRows<T> in;
  const int* bounds;  ///< [s, 2]
  const int* step_rows;
  const int* step_keys;  ///< [key_ranges, 2]
  int key_ranges;
  int topk;
  int capacity;  ///< of candidates
  bool first, last;
  Rows<float> state_scores;
  Rows<int> state_indices;
  int* state_length;
  ListOutput out;
};

template <class T>
__device__ void write_state(const TopkArgument<T>& a, int slot, const std::uint64_t* best, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += block_threads) {
    a.state_scores.at(slot)[i] = rank_key_score(best[i]);
    a.state_indices.at(slot)[i] = rank_key_row(best[i]);
  }
  if (threadIdx.x == 0) a.state_length[slot] = count;
}

/// One block for each row of the step.
template <class T>
__global__ void __launch_bounds__(block_threads) select_keys(TopkArgument<T> a) {
  __shared__ SelectorMemory memory;
  __shared__ int sums[block_warps];
  auto* const candidates = static_cast<std::uint64_t*>(dynamic_shared());
  const int slot = static_cast<int>(blockIdx.x);
  const int row = a.step_rows[slot];
  const int begin = a.bounds[2 * std::int64_t{row}];
  const int end = a.bounds[2 * std::int64_t{row} + 1];
  if (end - begin <= a.topk) {
    if (a.last) {
      write_range(a.out, row, begin, end);
    } else if (threadIdx.x == 0) {
      a.state_length[slot] = 0;
    }
    return;
  }
  TopkSelector selector(candidates, a.capacity, a.topk, memory);
  const int kept = a.first ? 0 : a.state_length[slot];
  for (int first = 0; first < kept; first += block_threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    selector.offer(i < kept ? rank_key(a.state_scores.at(slot)[i], a.state_indices.at(slot)[i]) : 0);
  }
  RowScorer<T> scorer(a.in, row, reinterpret_cast<float*>(candidates + a.capacity));
  int nans = 0;
  for (int range = 0; range < a.key_ranges; ++range) {
    const int range_end = min(a.step_keys[2 * range + 1], end);
    for (int first = max(a.step_keys[2 * range], begin); first < range_end; first += block_threads) {
      const int landed = first + static_cast<int>(threadIdx.x);
      const bool seen = landed < range_end;
      IndexKey key;
      load_key(a.in, seen ? landed : first, key);
      const float score = scorer.score(key);
      const bool nan = score != score;
      nans += seen && nan ? 1 : 0;
      selector.offer(seen && !nan ? rank_key(score, landed) : 0);
    }
  }
  selector.finish();
  if (a.last) {
    write_list(a.out, row, candidates, selector.count());
  } else {
    write_state(a, slot, candidates, selector.count());
  }
  add_nans(a.out, block_sum(nans, sums));
}

const bool registered =
    register_kernel(select_keys<float>) && register_kernel(select_keys<Bf16>) && register_kernel(select_keys<E4m3>);

template <class T>
void run(const NativeStream& stream, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
         const TopkLists& out) {
  TopkArgument<T> a;
  a.topk = static_cast<int>(in.topk);
  // Of many heads only some are held where K leaves little room.
  const int least_spare = block_threads;
  const std::size_t least = static_cast<std::size_t>(a.topk + least_spare) * sizeof(std::uint64_t);
  const int most_held = least + scorer_bytes(64) <= most_shared ? 64 : 32;
  a.in = index_rows<T>(in, most_held);
  const std::size_t left = (most_shared - least - scorer_bytes(a.in.held_heads)) / sizeof(std::uint64_t);
  a.capacity = a.topk + least_spare + static_cast<int>(std::min<std::size_t>(left, most_spare - least_spare)) / 2 * 2;
  a.capacity += a.capacity % 2;  // what follows is aligned to 16 bytes
  a.bounds = in.bounds.data_as<const int>();
  a.step_rows = in.step_rows.data_as<const int>();
  a.step_keys = in.step_keys.data_as<const int>();
  a.key_ranges = static_cast<int>(step.keys.size());
  a.first = step.first;
  a.last = step.last;
  a.state_scores = rows_of<float>(state.scores);
  a.state_indices = rows_of<int>(state.indices);
  a.state_length = state.length.data_as<int>();
  a.out = list_output(out, in.topk);
  launch(stream, select_keys<T>, a, step.row_count(), 1,
         static_cast<std::size_t>(a.capacity) * sizeof(std::uint64_t) + scorer_bytes(a.in.held_heads));
}

}  // namespace

void indexer_topk(const NativeStream& stream, const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                  const TopkLists& out) {
  switch (in.index_q.dtype()) {
    case DType::f8e4m3:
      return run<E4m3>(stream, step, in, state, out);
    case DType::bf16:
      return run<Bf16>(stream, step, in, state, out);
    default:
      return run<float>(stream, step, in, state, out);
  }
}

}  // namespace tandem::detail::cuda::generic
