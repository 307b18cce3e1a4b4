// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/generic/block.cuh"
#include "tandem/kernels.hpp"

/// The only place where indexer scores are computed: each thread scores one key against the block's row. A score is one
/// chain of operations on its two rows, whatever else is computed beside it.
namespace tandem::detail::cuda::generic {

constexpr int key_columns = static_cast<int>(index_dim);
/// Whether keys have scales.
template <class T>
constexpr bool scaled = std::is_same_v<T, E4m3>;

template <class T>
struct IndexRows {
  Rows<const T> q;
  Rows<const float> w;
  Rows<const T> k;
  int heads;
  int held_heads;  ///< whose queries fit the block's memory at once
  bool relu;
  bool wide;  ///< rows of k begin at multiples of 16 bytes
  Rows<const float> k_scale;
};

/// Bytes of shared memory that a RowScorer needs, a multiple of 16.
__host__ __device__ inline std::size_t scorer_bytes(int held_heads) {
  return static_cast<std::size_t>(held_heads * (key_columns + 4)) * sizeof(float);
}

template <class T>
IndexRows<T> index_rows(const IndexerInputs& in, int most_held) {
  IndexRows<T> rows;
  rows.q = rows_of<const T>(in.index_q);
  rows.w = rows_of<const float>(in.index_w);
  rows.k = rows_of<const T>(in.index_k);
  rows.heads = static_cast<int>(in.index_q.size(1));
  rows.held_heads = std::min(rows.heads, most_held);
  rows.relu = in.relu;
  rows.k_scale = rows_of<const float>(in.index_k_scale);
  rows.wide = (reinterpret_cast<std::uintptr_t>(in.index_k.data()) | in.index_k.row_stride_bytes()) % 16 == 0;
  return rows;
}

struct IndexKey {
  float at[key_columns];
  float scale;  ///< if there are any
};

template <class T>
__device__ void load_key(const IndexRows<T>& in, std::int64_t row, IndexKey& key) {
  const T* const from = in.k.at(row);
  if constexpr (scaled<T>) key.scale = *in.k_scale.at(row);
  if (!in.wide) {
#pragma unroll
    for (int c = 0; c < key_columns; ++c) key.at[c] = widen(from[c]);
    return;
  }
  constexpr int per_load = 16 / sizeof(T);
#pragma unroll
  for (int c = 0; c < key_columns; c += per_load) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + c);
    const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < per_load; ++i) {
      if constexpr (per_load == 4) {
        key.at[c + i] = __uint_as_float(words[i]);
      } else if constexpr (per_load == 16) {
        key.at[c + i] = float_from_e4m3(words[i / 4] >> (8 * (i % 4)));
      } else {
        key.at[c + i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000U);
      }
    }
  }
}

/// q . key, in the order of dot<128>.
__device__ inline float dot_key(const float* q, const IndexKey& key) {
  float sum[4] = {};
#pragma unroll
  for (int c = 0; c < key_columns; c += 4) {
    const float4 x = *reinterpret_cast<const float4*>(q + c);
    sum[0] = __fmaf_rn(x.x, key.at[c], sum[0]);
    sum[1] = __fmaf_rn(x.y, key.at[c + 1], sum[1]);
    sum[2] = __fmaf_rn(x.z, key.at[c + 2], sum[2]);
    sum[3] = __fmaf_rn(x.w, key.at[c + 3], sum[3]);
  }
  return __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
}

/// The block's row, its queries in shared memory.
template <class T>
class RowScorer {
 public:
  __device__ RowScorer(const IndexRows<T>& in, std::int64_t row, float* shared)
      : in_(in), row_(row), q_(shared), w_(shared + in.held_heads * key_columns) {}

  /// Has barriers in it: every thread of the block has to call, whatever its key.
  __device__ float score(const IndexKey& key) {
    float score = 0;
    for (int first = 0; first < in_.heads; first += in_.held_heads) {
      const int count = min(in_.held_heads, in_.heads - first);
      if (first != loaded_) load(first, count);
#pragma unroll 1
      for (int h = 0; h < count; ++h) {
        const float z = dot_key(q_ + h * key_columns, key);
        score = __fmaf_rn(w_[h], in_.relu && z < 0 ? 0.0F : z, score);
      }
    }
    if constexpr (scaled<T>) score = __fmul_rn(score, key.scale);
    return score;
  }

 private:
  __device__ void load(int first, int count) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count * key_columns; i += block_threads) {
      q_[i] = widen(in_.q.at(row_, first + i / key_columns)[i % key_columns]);
    }
    for (int h = static_cast<int>(threadIdx.x); h < count; h += block_threads) w_[h] = in_.w.at(row_)[first + h];
    __syncthreads();
    loaded_ = first;
  }

  const IndexRows<T>& in_;
  const std::int64_t row_;
  float* const q_;
  float* const w_;
  int loaded_ = -1;
};

}  // namespace tandem::detail::cuda::generic
