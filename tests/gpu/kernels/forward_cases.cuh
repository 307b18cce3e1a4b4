// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <string>

#include "kernel_bench.cuh"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"

/// What the checks and measurements of the sparse forward share: lists, data, and an oracle in float64 that has nothing
/// in common with the kernels but the formula.
namespace tandem::test {

using detail::sm90::SparseForwardArgs;

enum class Lists {
  random,     ///< distinct rows in random order
  ascending,  ///< the same, sorted, as the DSA pipeline hands them over
  local       ///< sorted; 80 % within the last 8192 rows before a place that moves with the query
};

inline const char* name_of(Lists lists) {
  return lists == Lists::random ? "random" : lists == Lists::ascending ? "ascending" : "local";
}

/// A number below 2^bits for each number below 2^bits.
inline std::uint32_t permuted(std::uint32_t x, int bits, std::uint64_t seed) {
  const std::uint32_t mask = bits == 32 ? 0xFFFFFFFFU : (1U << bits) - 1U;
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t r = mix(seed, static_cast<std::uint64_t>(round));
    x = (x * (static_cast<std::uint32_t>(r) | 1U) + static_cast<std::uint32_t>(r >> 32)) & mask;
    x ^= x >> (bits / 2 + 1);
  }
  return x;
}
/// Distinct numbers below `limit`, by walking a permutation of the power of two above it.
class Draw {
 public:
  Draw(std::uint32_t limit, std::uint64_t seed) : limit_(limit), seed_(seed) {
    while ((1ULL << bits_) < limit) ++bits_;
  }
  std::uint32_t next() {
    for (;;) {
      const std::uint32_t x = permuted(at_++, bits_, seed_);
      if (x < limit_) return x;
    }
  }

 private:
  std::uint32_t limit_, at_ = 0;
  std::uint64_t seed_;
  int bits_ = 1;
};

/// [queries, topk] lists of `topk` distinct rows below `keys`.
inline std::vector<std::int32_t> make_lists(Lists kind, std::int64_t queries, std::int64_t keys, int topk,
                                            std::uint64_t seed) {
  std::vector<std::int32_t> lists(static_cast<std::size_t>(queries * topk));
  parallel(static_cast<std::size_t>(queries), [&](std::size_t t) {
    std::int32_t* list = lists.data() + t * static_cast<std::size_t>(topk);
    int count = 0;
    std::int64_t begin = 0, end = 0;
    if (kind == Lists::local) {
      end = std::min<std::int64_t>(keys, 8192 + (keys - 8192) * static_cast<std::int64_t>(t) / queries);
      begin = std::max<std::int64_t>(0, end - 8192);
      Draw near(static_cast<std::uint32_t>(end - begin), mix(seed, t));
      const int wanted = std::min<int>(topk * 4 / 5, static_cast<int>(end - begin));
      while (count < wanted) list[count++] = static_cast<std::int32_t>(begin + near.next());
    }
    Draw draw(static_cast<std::uint32_t>(keys), mix(seed + 1, t));
    while (count < topk) {
      const auto row = static_cast<std::int32_t>(draw.next());
      if (row < begin || row >= end) list[count++] = row;
    }
    if (kind != Lists::random) std::sort(list, list + topk);
  });
  return lists;
}

__global__ void fill_normal_kernel(__nv_bfloat16* to, std::size_t count, float factor, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    to[i] = __float2bfloat16(normal(seed, i) * factor);
  }
}
inline void fill_normal(__nv_bfloat16* to, std::size_t count, float factor, std::uint64_t seed) {
  if (count == 0) return;
  fill_normal_kernel<<<1024, 256>>>(to, count, factor, seed);
  CUDA_OK(cudaGetLastError());
}

/// What the oracle writes: the exact output, and that of a plain evaluation with probabilities rounded to bf16 and
/// fp32 sums, rounded to bf16, whose error is the yardstick.
struct OracleOutputs {
  double* out;    ///< [rows, H, 512]
  double* plain;  ///< [rows, H, 512]
  double* lse;    ///< [rows, H]
  double* size;   ///< [rows, H]: greatest sum of |scale q kv|, what rounding of a logit goes by
};

/// A block for each (query of `rows`, head); `logits` is scratch for K doubles of each.
__global__ void oracle_kernel(SparseForwardArgs a, const std::int64_t* rows, double* scratch, OracleOutputs o) {
  __shared__ double shared[256];
  const std::int64_t place = blockIdx.x, t = rows[place];
  const int h = static_cast<int>(blockIdx.y);
  const auto* q = static_cast<const __nv_bfloat16*>(a.q) + t * a.q_row_stride + h * a.q_head_stride;
  const auto* kv = static_cast<const __nv_bfloat16*>(a.kv);
  double* logits = scratch + (place * gridDim.y + h) * a.topk;
  int length = a.length[t];
  if (length < 0 || length > a.topk) length = 0;
  double top = -INFINITY, greatest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < length; i += 256) {
    const std::int64_t row = a.indices[t * a.topk + i];
    double dot = -INFINITY, size = 0;
    if (row >= 0 && row < a.keys) {
      dot = 0;
      for (int c = 0; c < a.dim; ++c) {
        const double product = static_cast<double>(__bfloat162float(q[c])) *
                               static_cast<double>(__bfloat162float(kv[row * a.kv_row_stride + c]));
        dot += product;
        size += fabs(product);
      }
      dot *= static_cast<double>(a.scale);
      greatest = fmax(greatest, size * static_cast<double>(a.scale));
    }
    logits[i] = dot;
    top = fmax(top, dot);
  }
  const auto combine = [&](double mine, auto op) {
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) shared[threadIdx.x] = op(shared[threadIdx.x], shared[threadIdx.x + half]);
      __syncthreads();
    }
    const double result = shared[0];
    __syncthreads();
    return result;
  };
  const auto more = [](double x, double y) { return fmax(x, y); };
  const auto plus = [](double x, double y) { return x + y; };
  top = combine(top, more);
  greatest = combine(greatest, more);
  const double sink = a.sink != nullptr ? static_cast<double>(a.sink[h]) : -INFINITY;
  const double all_top = fmax(top, sink);
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < length; i += 256) {
    if (logits[i] != -INFINITY) sum += exp(logits[i] - all_top);
  }
  sum = combine(sum, plus);
  if (sink != -INFINITY) sum += exp(sink - all_top);
  float plain_sum = 0;
  for (int i = 0; i < length; ++i) {
    if (logits[i] != -INFINITY) plain_sum += expf(static_cast<float>(logits[i] - top));
  }
  if (sink != -INFINITY && top != -INFINITY) plain_sum += expf(static_cast<float>(sink - top));
  for (int c = static_cast<int>(threadIdx.x); c < 512; c += 256) {
    double exact = 0;
    float plain = 0;
    for (int i = 0; i < length; ++i) {
      if (logits[i] == -INFINITY) continue;
      const std::int64_t row = a.indices[t * a.topk + i];
      const float v = __bfloat162float(kv[row * a.kv_row_stride + c]);
      exact += exp(logits[i] - all_top) * static_cast<double>(v);
      plain += __bfloat162float(__float2bfloat16(expf(static_cast<float>(logits[i] - top)))) * v;
    }
    const std::int64_t at = (place * gridDim.y + h) * 512 + c;
    o.out[at] = sum > 0 ? exact / sum : 0.0;
    o.plain[at] = plain_sum > 0 ? static_cast<double>(__bfloat162float(__float2bfloat16(plain / plain_sum))) : 0.0;
  }
  if (threadIdx.x == 0) {
    o.lse[place * gridDim.y + h] = all_top == -INFINITY ? -INFINITY : all_top + log(sum);
    o.size[place * gridDim.y + h] = greatest;
  }
}

}  // namespace tandem::test
