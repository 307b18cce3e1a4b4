// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_forward_shared.cuh"
#include "wgmma_attention.cuh"

/// Sparse forward for many heads: a work item is a query and 64 of its heads, which are the rows of all products.
///
/// Of two matrix warpgroups the first scores the even tiles, the second the odd ones. Each has half of the output's
/// columns and so needs the probabilities of every tile: its own from registers, the other's through shared memory,
/// along with the running maximum that they refer to. A tile is freed in halves, the columns of either warpgroup; the
/// second also has the columns that are no value. Probabilities of even tiles lie where those columns were.
///
/// Both score at the same time. The first then fixes the maximum of its tile, the second that of both, and either
/// multiplies its own tile before the other's, so that halves of tiles become free, and are gathered again, one after
/// the other: the even tile's first, the odd one's second, then the even one's second and the odd one's first. What is
/// on its way is hidden behind the products that are still to come.
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
      full[tile][tile].init(128 + 4);
      full[tile][1 - tile].init(128);
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

  /// One parity's tile on its way.
  struct Tile {
    RowGather rows;
    std::uint32_t there = 0;
    int entry = -1;  ///< of the tile that comes next

    __device__ __forceinline__ explicit Tile(int thread) : rows(thread) {}
  };

  /// Copies one half of a tile's columns once its place is free; the half that is scored first also brings `there`.
  template <int Side, int Half>
  static __device__ __forceinline__ void copy_half(Shared& s, const Tile& tile, unsigned parity) {
    s.empty[Side][Half].wait(parity);
    Mbarrier& full = s.full[Side][Half];
    if (Half == Side && tile.rows.lane == 0) {
      s.there[Side][tile.rows.warp] = static_cast<std::uint16_t>(tile.there);
      full.arrive();
    }
    const std::uint32_t to = shared_address(s.k[Side][0]);
#pragma unroll
    for (int slice = 4 * Half; slice < (Half == 0 ? 4 : Slices); ++slice) {
      tile.rows.copy(to + slice * slice_bytes, slice);
    }
    arrive_after_copies(full);
  }

  static __device__ __forceinline__ void run(const SparseForwardParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) - 256;
    Tile even(thread), odd(thread);
    unsigned even_parity = 1, odd_parity = 1, q_parity = 0;
    const auto length_of = [&](std::int64_t item) { return item < p.items ? row_length(p, item / p.head_blocks) : 0; };
    const auto look_up = [&](std::int64_t item, int length, int tile) {
      const std::int32_t* const list = p.indices + item / p.head_blocks * p.topk;
      even.entry = even.rows.entry(list, length, tile);
      odd.entry = odd.rows.entry(list, length, tile + 1);
    };
    std::int64_t item = blockIdx.x;
    int length = length_of(item);
    look_up(item, length, 0);
    while (item < p.items) {
      const std::int64_t next = item + gridDim.x;
      const int next_length = length_of(next), tiles = tiles_of(length);
      for (int tile = 0; tile < tiles; tile += 2) {
        const bool both = tile + 1 < tiles;
        even.there = even.rows.aim(p, even.entry);
        odd.there = odd.rows.aim(p, odd.entry);
        if (tile + 2 < tiles) {
          look_up(item, length, tile + 2);
        } else {
          look_up(next, next_length, 0);
        }
        copy_half<0, 0>(s, even, even_parity);
        if (both) copy_half<1, 1>(s, odd, odd_parity);
        // Later queries wait for the last scores of the item before, which are older than what has been freed.
        if (tile == 0) {
          if (thread == 0) fetch_queries(p, s, item, q_parity);
          q_parity ^= 1U;
        }
        copy_half<0, 1>(s, even, even_parity);
        even_parity ^= 1U;
        if (both) {
          copy_half<1, 0>(s, odd, odd_parity);
          odd_parity ^= 1U;
        }
      }
      if (tiles == 0) look_up(next, next_length, 0);
      length = next_length;
      item = next;
    }
  }
};

/// Warpgroup `Side`: scores tiles of that parity, and has columns 256 Side .. + 255 of the output.
template <int Slices, int Side>
struct WideMatrixRole {
  using Shared = WideShared<Slices>;
  /// Named barriers: maxima and probabilities of a warpgroup are there, by Side.
  static constexpr int maxima_ready = 1, weights_ready = 3, all_ready = 5, even_ready = 6;

  float out[128];
  float score[32];           ///< then probabilities
  float maximum[2], sum[2];  ///< of heads row, row + 8
  int lane, warp, row;       ///< row: of the head block
  bool fresh;                ///< nothing has been accumulated
  unsigned parity = 0;

  /// What one half of the columns adds to the scores of the own tile, once it has landed.
  template <int Half>
  __device__ __forceinline__ void score_half(Shared& s) {
    constexpr int from = 4 * (4 * Half), to = 4 * (Half == 0 ? 4 : Slices);
    s.full[Side][Half].wait(parity);
    fence_async_shared();
    const std::uint32_t q = swizzled_operand(s.q[0]), k = swizzled_operand(s.k[Side][0]);
    wgmma_fence();
#pragma unroll
    for (int step = from; step < to; ++step) {
      const int at = step / 4 * (slice_bytes / 16) + step % 4 * 2;
      wgmma_kk(score, q + at, k + at, Half != Side || step > from);
    }
    wgmma_commit();
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
  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }

  /// Scores that are no key's become -infinity.
  __device__ __forceinline__ void mask(const Shared& s) {
    const std::uint64_t there = *reinterpret_cast<const std::uint64_t*>(s.there[Side]);
    if (there == ~std::uint64_t{0}) return;
    const std::uint64_t mine = there >> (2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if ((mine >> (8 * (i / 4) + i % 2) & 1) == 0) score[i] = -INFINITY;
    }
  }

  /// Scores of the own tile become probabilities, and the running maximum that of both warpgroups so far, which the
  /// other one is told.
  __device__ __forceinline__ void normalise(const SparseForwardParams& p, Shared& s) {
    mask(s);
    float next[2] = {score[0], score[2]};
#pragma unroll
    for (int i = 0; i < 32; ++i) next[i / 2 % 2] = fmaxf(next[i / 2 % 2], score[i]);
    if constexpr (Side == 1) named_sync<maxima_ready, 256>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      next[half] = fmaxf(next[half], __shfl_xor_sync(whole_warp, next[half], 1));
      next[half] = fmaxf(next[half], __shfl_xor_sync(whole_warp, next[half], 2));
      const float before = Side == 0 ? maximum[half] : s.maxima[0][row + 8 * half];
      next[half] = fmaxf(before, next[half] * p.scale_log2);
    }
    __syncwarp();
    if ((lane & 3) == 0) {
      s.maxima[Side][row] = next[0];
      s.maxima[Side][row + 8] = next[1];
    }
    named_arrive<maxima_ready + Side, 256>();
    rescale(next);
    const float base[2] = {finite_maximum(next[0]), finite_maximum(next[1])};
    float added[2] = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score[i] = exp2_fast(fmaf(score[i], p.scale_log2, -base[i / 2 % 2]));
      added[i / 2 % 2] += score[i];
    }
    sum[0] += added[0];
    sum[1] += added[1];
  }

  using Weights = std::uint32_t[4][4];  ///< probabilities as a left operand

  __device__ __forceinline__ void pack(Weights& weights, const float (&factor)[2]) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * step + 2 * i;
        weights[step][i] = pack_bf16(score[at] * factor[i % 2], score[at + 1] * factor[i % 2]);
      }
    }
  }
  /// Probabilities for the other warpgroup: the even tile's go where its last columns are.
  static __device__ __forceinline__ std::uint8_t* weights_of(Shared& s, int side) {
    return side == 0 ? s.k[0][8] : s.p;
  }
  __device__ __forceinline__ void store(Shared& s, const Weights& weights) const {
    const std::uint32_t to = shared_address(weights_of(s, Side)) + warp * (16 * 128);
    const int to_row = lane & 15;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = (2 * step + lane / 16) ^ (to_row & 7);
      store_matrices(to + to_row * 128 + chunk * 16, weights[step][0], weights[step][1], weights[step][2],
                     weights[step][3]);
    }
    fence_async_shared();
    named_arrive<weights_ready + Side, 256>();
  }

  /// Adds the product of the own tile.
  __device__ __forceinline__ void add_own(Shared& s, const Weights& weights) {
    const std::uint32_t v = transposed_operand(s.k[Side][4 * Side], slice_bytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_rt(out, weights[i], v + i * 128, !fresh || i > 0);
    wgmma_commit();
    fresh = false;
  }
  /// Adds that of the other warpgroup's tile, once its probabilities are there.
  __device__ __forceinline__ void add_other(Shared& s) {
    named_sync<weights_ready + 1 - Side, 256>();
    fence_async_shared();
    const std::uint32_t p = swizzled_operand(weights_of(s, 1 - Side));
    const std::uint32_t v = transposed_operand(s.k[1 - Side][4 * Side], slice_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_kt(out, p + step * 2, v + step * 128, !fresh || step > 0);
    wgmma_commit();
    fresh = false;
  }

  // Every loop's iterations end with no product under way and without a branch before: else the assembler does one
  // after the other.

  /// The even tile, whose scores are there: normalises it, adds its product.
  __device__ __forceinline__ void own_even(const SparseForwardParams& p, Shared& s, Weights& weights) {
    normalise(p, s);
    pack(weights, {1.0F, 1.0F});
    add_own(s, weights);
    wgmma_wait<0>();
    pin(out);
    release(s.empty[0][0]);
  }
  /// Gives the even tile to the other warpgroup by the maximum that it has, and adds the odd tile's product.
  __device__ __forceinline__ void exchange_even(Shared& s, Weights& weights) {
    named_sync<maxima_ready + 1, 256>();
    const float next[2] = {s.maxima[1][row], s.maxima[1][row + 8]};
    pack(weights, {exp2_fast(maximum[0] - finite_maximum(next[0])), exp2_fast(maximum[1] - finite_maximum(next[1]))});
    store(s, weights);
    rescale(next);
    add_other(s);
  }

  __device__ __forceinline__ void run_even(const SparseForwardParams& p, Shared& s, int tiles) {
    Weights weights;
    score_half<0>(s);
    score_half<1>(s);
    wgmma_wait<0>();
    pin(score);
    for (int tile = 2; tile < tiles; tile += 2) {
      parity ^= 1U;
      own_even(p, s, weights);
      exchange_even(s, weights);
      score_half<0>(s);
      wgmma_wait<1>();
      release(s.empty[1][0]);
      score_half<1>(s);
      wgmma_wait<0>();
      pin(score);
      pin(out);
    }
    parity ^= 1U;
    release(s.q_empty);
    own_even(p, s, weights);
    if (tiles % 2 != 0) {
      named_sync<even_ready, 128>();  // other warps may still be scoring by the columns that weights replace
      return store(s, weights);
    }
    exchange_even(s, weights);
    wgmma_wait<0>();
    pin(out);
    release(s.empty[1][0]);
  }

  __device__ __forceinline__ void run_odd(const SparseForwardParams& p, Shared& s, int tiles) {
    Weights weights;
    if (tiles == 1) release(s.q_empty);
    for (int tile = 1; tile < tiles; tile += 2) {
      score_half<1>(s);
      score_half<0>(s);
      wgmma_wait<0>();
      pin(score);
      parity ^= 1U;
      if (tile + 2 >= tiles) release(s.q_empty);
      normalise(p, s);
      pack(weights, {1.0F, 1.0F});
      add_own(s, weights);
      store(s, weights);
      add_other(s);
      wgmma_wait<1>();
      release(s.empty[1][1]);
      wgmma_wait<0>();
      pin(out);
      release(s.empty[0][1]);
    }
    if (tiles % 2 == 0) return;
    named_sync<maxima_ready, 256>();
    const float next[2] = {s.maxima[0][row], s.maxima[0][row + 8]};
    rescale(next);
    add_other(s);
    wgmma_wait<0>();
    pin(out);
    release(s.empty[0][1]);
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
        if constexpr (Side == 0) {
          run_even(p, s, tiles);
        } else {
          run_odd(p, s, tiles);
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
