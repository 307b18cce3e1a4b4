// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "kernel_bench.cuh"
#include "kernels/cuda/sm90/indexer_launch.hpp"

/// What the indexer's checks and measurements share: data, an independent reference.
namespace tandem::test {

using detail::sm90::IndexerArgs;
using detail::sm90::IndexerDtype;

enum class Pattern {
  random,     ///< about normal
  integers,   ///< small whole numbers: every score is exact in any order of additions, and many are equal
  ascending,  ///< scores rise with the key
  equal       ///< all scores are equal
};

__host__ __device__ inline float query_value(Pattern pattern, std::uint64_t seed, std::uint64_t at) {
  switch (pattern) {
    case Pattern::random:
      return normal(seed, at);
    case Pattern::integers:
      return static_cast<float>(static_cast<int>(mix(seed, at) % 5) - 2);
    case Pattern::ascending:
      return at % 128 < 2 ? 1.0F : 0.0F;
    default:
      return 1.0F;
  }
}
__host__ __device__ inline float key_value(Pattern pattern, std::uint64_t seed, std::uint64_t at, std::int64_t keys,
                                           bool bf16) {
  switch (pattern) {
    case Pattern::ascending: {
      if (!bf16) return at % 128 == 0 ? 1.0F : 0.0F;  // k_scale rises
      const auto value = static_cast<float>(at / 128 + 1) / static_cast<float>(keys);
      const float upper = __bfloat162float(__float2bfloat16(value));
      return at % 128 == 0 ? upper : at % 128 == 1 ? value - upper : 0.0F;
    }
    case Pattern::equal:
      return 0.5F;
    default:
      return query_value(pattern, seed + 1, at);
  }
}
__host__ __device__ inline float weight_value(Pattern pattern, std::uint64_t seed, std::uint64_t at) {
  switch (pattern) {
    case Pattern::random:
      return normal(seed + 2, at);
    case Pattern::integers:
      return static_cast<float>(static_cast<int>(mix(seed + 2, at) % 7) - 3);
    default:
      return 0.5F;
  }
}
__host__ __device__ inline float scale_value(Pattern pattern, std::uint64_t seed, std::uint64_t at, std::int64_t keys) {
  switch (pattern) {
    case Pattern::random:
      return 0.5F + static_cast<float>(mix(seed + 3, at) % 1024) / 1024.0F;
    case Pattern::integers:
      return static_cast<float>(1 << mix(seed + 3, at) % 3);
    case Pattern::ascending:
      return static_cast<float>(at + 1) / static_cast<float>(keys);
    default:
      return 1.0F;
  }
}

/// Inputs of the indexer in device memory, q and k as raw bytes of their dtype.
struct Inputs {
  IndexerDtype dtype;
  std::int64_t queries, keys;
  int heads;
  DeviceArray<std::uint8_t> q, k;
  DeviceArray<float> w, k_scale;

  Inputs(IndexerDtype type, std::int64_t s, std::int64_t n, int hi)
      : dtype(type),
        queries(s),
        keys(n),
        heads(hi),
        q(static_cast<std::size_t>(s * hi * 128) * width()),
        k(static_cast<std::size_t>(n * 128) * width()),
        w(static_cast<std::size_t>(s * hi)),
        k_scale(static_cast<std::size_t>(n)) {}
  std::size_t width() const { return dtype == IndexerDtype::bf16 ? 2 : 1; }
  void fill(Pattern pattern, std::uint64_t seed);
  void attach(IndexerArgs& args) const {
    args.dtype = dtype;
    args.queries = queries;
    args.keys = keys;
    args.heads = heads;
    args.q = q.data();
    args.k = k.data();
    args.w = w.data();
    args.k_scale = k_scale.data();
  }
};

__device__ inline void store_value(void* to, std::int64_t at, float value, bool bf16) {
  if (bf16) {
    static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(value);
  } else {
    static_cast<__nv_fp8_e4m3*>(to)[at] = __nv_fp8_e4m3(value);
  }
}
__device__ inline float load_value(const void* from, std::int64_t at, bool bf16) {
  return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at])
              : static_cast<float>(static_cast<const __nv_fp8_e4m3*>(from)[at]);
}

__global__ void fill_kernel(void* q, void* k, float* w, float* scale, std::int64_t nq, std::int64_t nk, std::int64_t nw,
                            std::int64_t keys, Pattern pattern, std::uint64_t seed, bool bf16) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = start; i < nq; i += stride) store_value(q, i, query_value(pattern, seed, i), bf16);
  for (std::int64_t i = start; i < nk; i += stride) store_value(k, i, key_value(pattern, seed, i, keys, bf16), bf16);
  for (std::int64_t i = start; i < nw; i += stride) w[i] = weight_value(pattern, seed, i);
  for (std::int64_t i = start; i < keys; i += stride) scale[i] = scale_value(pattern, seed, i, keys);
}
inline void Inputs::fill(Pattern pattern, std::uint64_t seed) {
  fill_kernel<<<2048, 256>>>(q.data(), k.data(), w.data(), k_scale.data(), queries * heads * 128, keys * 128,
                             queries * heads, keys, pattern, seed, dtype == IndexerDtype::bf16);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
}

/// Scores and their rounding scale sum |w| |q| |k| in float64, one thread a (row, key), by the formula and nothing
/// else.
__global__ void reference_kernel(const void* q, const void* k, const float* w, const float* scale,
                                 const std::int32_t* rows, int row_count, std::int64_t keys, int heads, bool relu,
                                 bool bf16, double* scores, double* magnitude) {
  const std::int64_t key = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int slot = static_cast<int>(blockIdx.y);
  if (key >= keys || slot >= row_count) return;
  const std::int64_t row = rows[slot];
  double score = 0, size = 0;
  for (int h = 0; h < heads; ++h) {
    double dot = 0, absolute = 0;
    for (int d = 0; d < 128; ++d) {
      const double a = load_value(q, (row * heads + h) * 128 + d, bf16), b = load_value(k, key * 128 + d, bf16);
      dot += a * b;
      absolute += fabs(a * b);
    }
    const double weight = w[row * heads + h];
    score += weight * (relu && dot < 0 ? 0.0 : dot);
    size += fabs(weight) * absolute;
  }
  const double factor = bf16 ? 1.0 : static_cast<double>(scale[key]);
  scores[slot * keys + key] = score * factor;
  magnitude[slot * keys + key] = size * fabs(factor);
}

struct Reference {
  std::vector<double> scores, magnitude;
};
inline Reference reference_scores(const Inputs& in, const std::vector<std::int32_t>& rows, bool relu) {
  const auto entries = rows.size() * static_cast<std::size_t>(in.keys);
  DeviceArray<double> scores(entries), magnitude(entries);
  DeviceArray<std::int32_t> list(rows);
  const dim3 grid(static_cast<unsigned>((in.keys + 127) / 128), static_cast<unsigned>(rows.size()));
  reference_kernel<<<grid, 128>>>(in.q.data(), in.k.data(), in.w.data(), in.k_scale.data(), list.data(),
                                  static_cast<int>(rows.size()), in.keys, in.heads, relu,
                                  in.dtype == IndexerDtype::bf16, scores.data(), magnitude.data());
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  return {scores.get(), magnitude.get()};
}

/// The list of a row by the total order: score descending, then key ascending; NaN never; all of [begin, end) if that
/// is no more than K.
inline std::vector<std::int32_t> expected_list(const float* scores, std::int32_t begin, std::int32_t end, int topk) {
  std::vector<std::int32_t> list;
  for (std::int32_t j = begin; j < end; ++j) {
    if (end - begin <= topk || scores[j] == scores[j]) list.push_back(j);
  }
  if (static_cast<int>(list.size()) > topk) {
    std::sort(list.begin(), list.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    list.resize(static_cast<std::size_t>(topk));
    std::sort(list.begin(), list.end());
  }
  return list;
}

/// Everything that a launch writes, poisoned when made.
struct Outputs {
  DeviceArray<std::int32_t> indices, length;
  DeviceArray<std::int64_t> nans{1};
  DeviceArray<float> lse;
  Outputs(std::int64_t queries, int topk)
      : indices(static_cast<std::size_t>(queries * topk)),
        length(static_cast<std::size_t>(queries)),
        lse(static_cast<std::size_t>(queries)) {
    nans.set({0});
  }
  void attach(IndexerArgs& args, bool with_lse) {
    args.indices = indices.data();
    args.length = length.data();
    args.nan_count = nans.data();
    args.index_lse = with_lse ? lse.data() : nullptr;
  }
  bool red_zones_intact() const {
    return indices.red_zone_intact() && length.red_zone_intact() && nans.red_zone_intact() && lse.red_zone_intact();
  }
};

}  // namespace tandem::test
