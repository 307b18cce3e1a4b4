// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_forward_shared.cuh"
#include "wgmma_attention.cuh"

/// Sparse forward for many heads: a work item is a query and 64 of its heads, which are the rows of all products.
///
/// Two matrix warpgroups score the tiles in turn, the first the even ones. Each has half of the output's columns and so
/// needs the probabilities of every tile: its own from registers, the other's through shared memory, along with the
/// running maximum that they refer to. A tile is freed in halves, the columns of either warpgroup; the second also has
/// the columns that are no value. Probabilities of even tiles lie where those columns were.
///
/// A warpgroup multiplies the other's tile before it scores its own: shared memory holds two tiles, and only so is the
/// older one freed while the newer is worked on. It starts on its own scores, the half of the tile that comes first,
/// before it waits for the other's probabilities, so that the matrix units are busy meanwhile.
namespace tandem::detail::sm90 {

constexpr int wide_threads = 384;
constexpr int wide_heads = 64;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
constexpr int wide_matrix_registers = 216, wide_gather_registers = 72;
static_assert(2 * wide_matrix_registers + wide_gather_registers <= 3 * 168);

template <int Slices>
struct alignas(1024) WideShared {
  std::uint8_t q[Slices][slice_bytes];
  std::uint8_t k[2][9][slice_bytes];  ///< of even and odd tiles; slice 8 of the even one becomes its probabilities
  std::uint8_t p[slice_bytes];        ///< probabilities of odd tiles
  float maxima[2][wide_heads];        ///< running maximum after the tile, by the warpgroup that scored it
  float sums[2][2][wide_heads];       ///< of work items in turn, by warpgroup
  std::uint16_t there[2][4];          ///< which rows of the tile are keys
  Mbarrier q_full, q_empty;
  Mbarrier full[2][2], empty[2][2];  ///< [tile parity][half]

  __device__ __forceinline__ void init() {
    q_full.init(1);
    q_empty.init(8);
    for (int tile = 0; tile < 2; ++tile) {
      full[tile][0].init(128 + 4);
      full[tile][1].init(128);
      for (int half = 0; half < 2; ++half) empty[tile][half].init(4);
    }
  }
};

template <int Slices>
struct WideGatherRole {
  using Shared = WideShared<Slices>;

  static __device__ __forceinline__ void fetch_queries(const SparseForwardParams& p, Shared& s, std::int64_t item,
                                                       unsigned parity) {
    s.q_empty.wait(parity ^ 1U);
    s.q_full.arrive_expect(Slices * slice_bytes);
    const auto query = static_cast<int>(item / p.head_blocks);
    const int head = static_cast<int>(item % p.head_blocks) * wide_heads;
#pragma unroll
    for (int slice = 0; slice < Slices; ++slice) copy_box(s.q[slice], &p.q_map, slice * 64, head, query, s.q_full);
  }

  static __device__ __forceinline__ void run(const SparseForwardParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) - 256;
    RowGather rows(thread);
    unsigned parity = 3, q_parity = 0;  // parity: a bit for each buffer
    std::int64_t item = blockIdx.x;
    const auto list_of = [&](std::int64_t of) { return p.indices + of / p.head_blocks * p.topk; };
    int length = item < p.items ? row_length(p, item / p.head_blocks) : 0;
    int entry = item < p.items ? rows.entry(list_of(item), length, 0) : -1;
    bool first = true;
    while (item < p.items) {
      const std::int64_t next = item + gridDim.x;
      const int next_length = next < p.items ? row_length(p, next / p.head_blocks) : 0;
      const int tiles = tiles_of(length);
      for (int tile = 0; tile < tiles; ++tile) {
        const int buffer = tile & 1;
        const std::uint32_t there = rows.aim(p, entry);
        entry =
            tile + 1 < tiles ? rows.entry(list_of(item), length, tile + 1) : rows.entry(list_of(next), next_length, 0);
        if (p.prefetch) rows.prefetch(p, entry, Slices);
        if (first && thread == 0) fetch_queries(p, s, item, q_parity);
        const std::uint32_t to = shared_address(s.k[buffer][0]);
        s.empty[buffer][0].wait(parity >> buffer & 1U);
        if (rows.lane == 0) {
          s.there[buffer][rows.warp] = static_cast<std::uint16_t>(there);
          s.full[buffer][0].arrive();
        }
#pragma unroll
        for (int slice = 0; slice < 4; ++slice) rows.copy(to + slice * slice_bytes, slice);
        arrive_after_copies(s.full[buffer][0]);
        s.empty[buffer][1].wait(parity >> buffer & 1U);
#pragma unroll
        for (int slice = 4; slice < Slices; ++slice) rows.copy(to + slice * slice_bytes, slice);
        arrive_after_copies(s.full[buffer][1]);
        parity ^= 1U << buffer;
        // Later queries wait for the last scores of the item before, and must not hold up the tile.
        if (tile == 0) {
          if (!first && thread == 0) fetch_queries(p, s, item, q_parity);
          first = false;
          q_parity ^= 1U;
        }
      }
      if (tiles == 0) entry = rows.entry(list_of(next), next_length, 0);
      length = next_length;
      item = next;
    }
  }
};

/// Warpgroup `Side`: scores tiles of that parity, and has columns 256 Side .. + 255 of the output.
template <int Slices, int Side>
struct WideMatrixRole {
  using Shared = WideShared<Slices>;
  static constexpr int own_ready = 1 + Side, other_ready = 2 - Side, all_ready = 3, side_ready = 4 + Side;

  float out[128];
  float score[32];
  float maximum[2], sum[2];  ///< of heads row, row + 8
  int lane, warp, row;       ///< row: of the head block
  bool fresh;                ///< nothing has been accumulated
  unsigned parity = 0;

  __device__ __forceinline__ void scores(Shared& s, int from, int to) {
    const std::uint32_t q = swizzled_operand(s.q[0]), k = swizzled_operand(s.k[Side][0]);
#pragma unroll
    for (int step = 4 * from; step < 4 * to; ++step) {
      const int at = step / 4 * (slice_bytes / 16) + step % 4 * 2;
      wgmma_kk(score, q + at, k + at, step != 0);
    }
  }

  /// Moves everything accumulated so far to a new maximum.
  __device__ __forceinline__ void rescale(const float (&next)[2]) {
    if (__any_sync(whole_warp, next[0] != maximum[0] || next[1] != maximum[1])) {
      const float factor[2] = {exp2_fast(maximum[0] - finite_maximum(next[0])),
                               exp2_fast(maximum[1] - finite_maximum(next[1]))};
#pragma unroll
      for (int i = 0; i < 128; ++i) out[i] *= factor[i / 2 % 2];
      sum[0] *= factor[0];
      sum[1] *= factor[1];
      maximum[0] = next[0];
      maximum[1] = next[1];
    }
  }

  /// Adds the product of the other warpgroup's tile, once it has scored it.
  __device__ __forceinline__ void add_other(Shared& s) {
    named_sync<other_ready, 256>();
    const float next[2] = {s.maxima[1 - Side][row], s.maxima[1 - Side][row + 8]};
    rescale(next);
    fence_async_shared();
    const std::uint32_t p = swizzled_operand(Side == 0 ? s.p : s.k[0][8]);
    const std::uint32_t v = transposed_operand(s.k[1 - Side][4 * Side], slice_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_kt(out, p + step * 2, v + step * 128, !fresh || step > 0);
    wgmma_commit();
    fresh = false;
  }
  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }

  /// Scores of the own tile become probabilities, in registers and for the other warpgroup in shared memory.
  __device__ __forceinline__ void normalise(const SparseForwardParams& p, Shared& s, std::uint32_t (&weights)[4][4]) {
    const std::uint64_t there = *reinterpret_cast<const std::uint64_t*>(s.there[Side]);
    if (there != ~std::uint64_t{0}) {
      const std::uint64_t mine = there >> (2 * (lane & 3));
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if ((mine >> (8 * (i / 4) + i % 2) & 1) == 0) score[i] = -INFINITY;
      }
    }
    float next[2] = {score[0], score[2]};
#pragma unroll
    for (int i = 0; i < 32; ++i) next[i / 2 % 2] = fmaxf(next[i / 2 % 2], score[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      next[half] = fmaxf(next[half], __shfl_xor_sync(whole_warp, next[half], 1));
      next[half] = fmaxf(next[half], __shfl_xor_sync(whole_warp, next[half], 2));
      next[half] = fmaxf(maximum[half], next[half] * p.scale_log2);
    }
    const float base[2] = {finite_maximum(next[0]), finite_maximum(next[1])};
    if ((lane & 3) == 0) {
      s.maxima[Side][row] = next[0];
      s.maxima[Side][row + 8] = next[1];
    }
    float added[2] = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score[i] = exp2_fast(fmaf(score[i], p.scale_log2, -base[i / 2 % 2]));
      added[i / 2 % 2] += score[i];
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[step][i] = pack_bf16(score[8 * step + 2 * i], score[8 * step + 2 * i + 1]);
    }
    // The even tile's go where its last columns are, which other warps may still be reading.
    if constexpr (Side == 0) named_sync<side_ready, 128>();
    const std::uint32_t to = shared_address(Side == 0 ? s.k[0][8] : s.p) + warp * (16 * 128);
    const int to_row = lane & 15;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = (2 * step + lane / 16) ^ (to_row & 7);
      store_matrices(to + to_row * 128 + chunk * 16, weights[step][0], weights[step][1], weights[step][2],
                     weights[step][3]);
    }
    fence_async_shared();
    named_arrive<own_ready, 256>();
    rescale(next);
    sum[0] += added[0];
    sum[1] += added[1];
  }

  /// Scores and multiplies an own tile; before, but for the item's first tile, multiplies the other's.
  template <bool AfterOther>
  __device__ __forceinline__ void step(const SparseForwardParams& p, Shared& s, bool last) {
    s.full[Side][0].wait(parity);
    fence_async_shared();
    wgmma_fence();
    scores(s, 0, 4);
    wgmma_commit();
    if constexpr (AfterOther) add_other(s);
    s.full[Side][1].wait(parity);
    parity ^= 1U;
    fence_async_shared();
    wgmma_fence();
    scores(s, 4, Slices);
    wgmma_commit();
    if constexpr (AfterOther) {
      wgmma_wait<1>();
      release(s.empty[1 - Side][Side]);
    }
    wgmma_wait<0>();
    pin(score);
    if (last) release(s.q_empty);
    std::uint32_t weights[4][4];
    normalise(p, s, weights);
    const std::uint32_t v = transposed_operand(s.k[Side][4 * Side], slice_bytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_rt(out, weights[i], v + i * 128, !fresh || i > 0);
    wgmma_commit();
    fresh = false;
    wgmma_wait<0>();
    pin(out);
    release(s.empty[Side][Side]);
  }

  /// Divides by the sum of both warpgroups and writes the columns of this one.
  __device__ __forceinline__ void finish(const SparseForwardParams& p, Shared& s, std::int64_t item, int tiles,
                                         int number) {
    const std::int64_t query = item / p.head_blocks;
    const int head = static_cast<int>(item % p.head_blocks) * wide_heads + row;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(whole_warp, sum[half], 1);
      sum[half] += __shfl_xor_sync(whole_warp, sum[half], 2);
    }
    if (tiles > 0) {
      float(&sums)[2][wide_heads] = s.sums[number & 1];
      if ((lane & 3) == 0) {
        sums[Side][row] = sum[0];
        sums[Side][row + 8] = sum[1];
      }
      named_sync<all_ready, 256>();
      // The same order in both warpgroups.
      sum[0] = sums[0][row] + sums[1][row];
      sum[1] = sums[0][row + 8] + sums[1][row + 8];
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = head + 8 * half < p.heads;
      const float sink = p.sink != nullptr && real ? p.sink[head + 8 * half] * log2_e : -INFINITY;
      const float top = fmaxf(maximum[half], sink);
      const float base = finite_maximum(top);
      const float own = exp2_fast(maximum[half] - base);
      const float total = sum[half] * own + exp2_fast(sink - base);
      factor[half] = total > 0.0F ? own / total : 0.0F;
      if (Side == 0 && real && (lane & 3) == 0) {
        p.lse[query * p.heads + head + 8 * half] = top == -INFINITY ? top : (base + log2f(total)) * ln_2;
      }
    }
    const int quad = lane & 3;
    std::uint16_t* to = p.out + query * p.out_row_stride + head * p.out_head_stride + 256 * Side + 8 * quad;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = head + 8 * half < p.heads;
#pragma unroll
      for (int group = 0; group < 8; ++group) {
        std::uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (4 * group + i) + 2 * half;
          v[i] = tiles > 0 ? pack_bf16(out[at] * factor[half], out[at + 1] * factor[half]) : 0U;
        }
        const uint4 eight = gather_eight(v, quad);
        if (real) *reinterpret_cast<uint4*>(to + 8 * half * p.out_head_stride + 32 * group) = eight;
      }
    }
  }

  __device__ __forceinline__ void run(const SparseForwardParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) & 127;
    lane = thread & 31;
    warp = thread / 32;
    row = warp * 16 + lane / 4;
    unsigned q_parity = 0;
    int number = 0;
    for (std::int64_t item = blockIdx.x; item < p.items; item += gridDim.x, ++number) {
      const int tiles = tiles_of(row_length(p, item / p.head_blocks));
      fresh = true;
      maximum[0] = maximum[1] = -INFINITY;
      sum[0] = sum[1] = 0.0F;
      if (tiles > 0) {
        s.q_full.wait(q_parity);
        q_parity ^= 1U;
        if (Side == 0) {
          step<false>(p, s, tiles <= 2);
        } else if (tiles == 1) {
          release(s.q_empty);
        }
        int tile = 2 - Side;
        if (Side == 1 && tiles > 1) {
          step<true>(p, s, tiles <= 3);
          tile = 3;
        }
        for (; tile < tiles; tile += 2) step<true>(p, s, tile + 2 >= tiles);
        if ((tiles - 1) % 2 != Side) {  // the last tile is the other's
          add_other(s);
          wgmma_wait<0>();
          release(s.empty[1 - Side][Side]);
        }
      }
      finish(p, s, item, tiles, number);
    }
  }
};

template <int Slices>
__global__ void __launch_bounds__(wide_threads, 1)
    sparse_forward_wide_kernel(const __grid_constant__ SparseForwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  auto& s = set_up<WideShared<Slices>>(storage);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    raise_registers<wide_matrix_registers>();
    WideMatrixRole<Slices, 0> role;
    role.run(p, s);
  } else if (group == 1) {
    raise_registers<wide_matrix_registers>();
    WideMatrixRole<Slices, 1> role;
    role.run(p, s);
  } else {
    lower_registers<wide_gather_registers>();
    WideGatherRole<Slices>::run(p, s);
  }
}

}  // namespace tandem::detail::sm90
