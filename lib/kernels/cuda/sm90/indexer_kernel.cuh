// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_fetch.cuh"
#include "indexer_score.cuh"
#include "indexer_select.cuh"

/// The indexer kernel: barriers, then one role a warp. `Select` false leaves the selection out, for measurements.
namespace tandem::detail::sm90 {

template <IndexerDtype Dtype, int Heads, bool Select>
__global__ void __launch_bounds__(indexer_threads, 1) indexer_kernel(const __grid_constant__ IndexerParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  using Shared = IndexerShared<Dtype, Heads>;
  Shared& s = *reinterpret_cast<Shared*>(storage);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < OperandTraits<Dtype>::stages; ++i) {
      s.k_full[i].init(Dtype == IndexerDtype::scores ? 1 : 2);  // what is where; that the copy engine brings it
      s.k_empty[i].init(4);
    }
    for (int i = 0; i < 2; ++i) {
      s.q_full[i].init(64);
      s.q_empty[i].init(matrix_warps);
    }
    for (int i = 0; i < Shared::block_buffers; ++i) {
      s.block_full[i].init(matrix_warps);
      s.block_empty[i].init(1);
    }
    fence_barrier_init();
  }
  for (int i = thread; i < threshold_slots * Shared::rows; i += indexer_threads) {
    s.thresholds[i / Shared::rows][i % Shared::rows] = no_threshold;
  }
  __syncthreads();
  const int group = thread / 128;
  if (group < 2) {
    raise_registers<matrix_registers>();
    ScoreRole<Dtype, Heads, Select>::run(p, s);
  } else {
    lower_registers<other_registers>();
    if (thread / 32 == fetch_warp) {
      FetchRole<Dtype, Heads>::run(p, s);
    } else if constexpr (Select) {
      SelectRole<Dtype, Heads>::run(p, s);
    }
  }
}

}  // namespace tandem::detail::sm90
