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
#include <thread>
#include <vector>

#include "kernels/cuda/sm90/indexer_launch.hpp"

/// What the indexer's checks and measurements share: device memory, data, an independent reference.
namespace tandem::test {

using detail::sm90::IndexerArgs;
using detail::sm90::IndexerDtype;

#define CUDA_OK(call)                                                                        \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(2);                                                                          \
    }                                                                                        \
  } while (false)

/// Device memory with a red zone of 256 bytes behind it.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count = 0) : count_(count) {
    CUDA_OK(cudaMalloc(&data_, bytes() + zone));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { set(host); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void poison() { CUDA_OK(cudaMemset(data_, 0xAB, bytes() + zone)); }
  void set(const std::vector<T>& host) { CUDA_OK(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> host(count_);
    CUDA_OK(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return host;
  }
  bool red_zone_intact() const {
    std::vector<std::uint8_t> tail(zone);
    CUDA_OK(
        cudaMemcpy(tail.data(), reinterpret_cast<const std::uint8_t*>(data_) + bytes(), zone, cudaMemcpyDeviceToHost));
    return std::all_of(tail.begin(), tail.end(), [](std::uint8_t b) { return b == 0xAB; });
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  static constexpr std::size_t zone = 256;
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// splitmix64: one independent number for each (seed, index), on either side.
__host__ __device__ inline std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15ULL + index * 0xD1B54A32D192ED03ULL + 0x632BE59BD9B4E019ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}
/// About normal: the sum of four uniform numbers.
__host__ __device__ inline float normal(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = mix(seed, index);
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xFFFF) / 65536.0F - 0.5F;
  return sum * 1.7320508F;
}

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

inline void parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  const std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (std::size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (std::size_t i = t; i < count; i += threads) body(i);
    });
  }
  for (std::thread& thread : pool) thread.join();
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
