// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_backward_shared.cuh"
#include "wgmma_attention.cuh"

/// The sparse backward's pass over queries: a work item is a row and 64 of its heads. For each tile of 64 keys
///   S^T = K Q^T, dP^T = V dO^T, P = exp(S - lse), dS = P (dP - delta) scale, dQ += dS K.
///
/// Keys are the rows of the first two products, so that P and dS come out as the keys pass wants them, head after head.
/// Of two matrix warpgroups the first computes S, the second dP, which cost about the same. They then exchange halves:
/// the first makes P and dS of heads 0..31, the second of the rest. What they exchange lies where P and dS will lie.
/// Each then multiplies dS by its columns of the tile, the second also by those that are no value.
///
/// Queries, output gradients and a tile of keys fill shared memory, so that the gather of the next tile can only follow
/// the last reader of this one, slice by slice. It fills slices in the order in which they are freed.
namespace tandem::detail::sm90 {

constexpr int query_pass_threads = 384;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
constexpr int query_pass_matrix_registers = 224, query_pass_gather_registers = 56;
static_assert(2 * query_pass_matrix_registers + query_pass_gather_registers <= 3 * 168);

/// The place-th slice to be freed: the warpgroups have columns 0..3 and 4..8 and free two slices at a time.
__host__ __device__ constexpr int freed_slice(int place) {
  constexpr int order[9] = {0, 1, 4, 5, 2, 3, 6, 7, 8};
  return order[place];
}

template <int Slices>
struct alignas(1024) QueryPassShared {
  std::uint8_t q[Slices][slice_bytes];
  std::uint8_t dout[value_slices][slice_bytes];
  std::uint8_t k[Slices][slice_bytes];
  std::uint8_t x[2][slice_bytes];  ///< P and dS; before that, halves of S and of dP between the warpgroups
  HeadPair statistics[2][2][16];   ///< of work items in turn, by warpgroup
  float sums[tile_rows];           ///< of P over the first warpgroup's heads
  std::uint16_t there[4];          ///< which rows of the tile are keys
  Mbarrier full[2], empty[2];      ///< queries, output gradients; each with statistics of its warpgroup
  Mbarrier k_full[Slices], k_empty[Slices];

  __device__ __forceinline__ void init() {
    for (int side = 0; side < 2; ++side) {
      full[side].init(1);
      empty[side].init(4);
    }
    for (int slice = 0; slice < Slices; ++slice) {
      k_full[slice].init(slice == 0 ? 128 + 4 : 128);
      k_empty[slice].init(4);
    }
  }
};

/// A row of the block and a head block; those of a row run at the same time and share its keys in L2.
struct QueryPassItem {
  std::int64_t block_row, query;
  int block;

  __device__ __forceinline__ QueryPassItem(const SparseBackwardParams& p, std::int64_t item)
      : block_row(item / p.head_blocks),
        query(p.first_row + block_row),
        block(static_cast<int>(item - block_row * p.head_blocks)) {}
};

template <int Slices>
struct QueryPassGatherRole {
  using Shared = QueryPassShared<Slices>;

  static __device__ __forceinline__ void fetch(const SparseBackwardParams& p, Shared& s, std::int64_t number,
                                               unsigned count) {
    constexpr std::uint32_t statistics_bytes = sizeof(s.statistics[0][0]);
    const QueryPassItem item(p, number);
    const unsigned parity = count & 1U;
    const HeadPair* statistics = p.statistics + (item.block_row * p.head_blocks + item.block) * block_pairs;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int slices = side == 0 ? Slices : value_slices;
      s.empty[side].wait(parity ^ 1U);
      s.full[side].arrive_expect(static_cast<std::uint32_t>(slices) * slice_bytes + statistics_bytes);
      // The other set may still be read: the warpgroup frees its queries before it is done with their statistics.
      copy_bulk(s.statistics[parity][side], statistics + 16 * side, statistics_bytes, s.full[side]);
      for (int slice = 0; slice < slices; ++slice) {
        copy_box(side == 0 ? s.q[slice] : s.dout[slice], side == 0 ? &p.q_map : &p.dout_map, slice * 64,
                 item.block * block_heads, static_cast<int>(item.query), s.full[side]);
      }
    }
  }

  static __device__ __forceinline__ void run(const SparseBackwardParams& p, Shared& s) {
    const int thread = static_cast<int>(threadIdx.x) - 256;
    const std::int64_t items = p.rows * p.head_blocks;
    RowGather rows(thread);
    unsigned parity = 1, count = 0;
    const auto list_of = [&](std::int64_t item) { return p.indices + QueryPassItem(p, item).query * p.topk; };
    const auto length_of = [&](std::int64_t item) {
      return item < items ? row_length(p, QueryPassItem(p, item).query) : 0;
    };
    std::int64_t item = blockIdx.x;
    int length = length_of(item);
    int entry = length > 0 ? rows.entry(list_of(item), length, 0) : -1;
    while (item < items) {
      const std::int64_t next = item + gridDim.x;
      const int next_length = length_of(next);
      const int tiles = tiles_of(length);
      if (tiles > 0) {
        if (thread == 0) fetch(p, s, item, count);
        ++count;
      }
      for (int tile = 0; tile < tiles; ++tile) {
        const std::uint32_t there = rows.aim(p, entry);
        if (tile + 1 < tiles) entry = rows.entry(list_of(item), length, tile + 1);
#pragma unroll
        for (int i = 0; i < Slices; ++i) {
          const int slice = freed_slice(i);
          s.k_empty[slice].wait(parity);
          if (i == 0 && rows.lane == 0) {
            s.there[rows.warp] = static_cast<std::uint16_t>(there);
            s.k_full[slice].arrive();
          }
          rows.copy(shared_address(s.k[slice]), slice);
          arrive_after_copies(s.k_full[slice]);
        }
        parity ^= 1U;
      }
      entry = next_length > 0 ? rows.entry(list_of(next), next_length, 0) : -1;
      length = next_length;
      item = next;
    }
  }
};

/// Warpgroup `Side`: S of all heads and columns 0..255 of dQ, or dP and the rest of dQ.
template <int Slices, int Side>
struct QueryPassMatrixRole {
  using Shared = QueryPassShared<Slices>;
  static constexpr int sent = 1, taken = 2, written = 3, stored = 4 + Side;
  static constexpr bool has_rope = Side == 1 && Slices > value_slices;

  float dq[2][64];  ///< 128 columns each
  float rope[has_rope ? 32 : 1];
  int thread, lane, warp;
  unsigned k_parity = 0;
  std::uint64_t policy;

  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }

  /// S or dP of the tile; slice by slice as they come.
  __device__ __forceinline__ void score(Shared& s, float (&acc)[32]) {
    const std::uint32_t k = swizzled_operand(s.k[0]), other = swizzled_operand(Side == 0 ? s.q[0] : s.dout[0]);
    constexpr int slices = Side == 0 ? Slices : value_slices;
#pragma unroll
    for (int i = 0; i < slices; ++i) {
      const int slice = freed_slice(i);
      s.k_full[slice].wait(k_parity);
      fence_async_shared();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = slice * (slice_bytes / 16) + step * straight_step;
        wgmma_kk(acc, k + at, other + at, i + step != 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(acc);
  }

  /// Gives the other warpgroup its half of `acc` (heads are columns) and takes this one's half of the other's.
  __device__ __forceinline__ void exchange(Shared& s, const float (&acc)[32], float (&other)[16]) {
    auto* const to = reinterpret_cast<float4*>(s.x[Side]) + thread;
    const auto* const from = reinterpret_cast<const float4*>(s.x[1 - Side]) + thread;
    // What is here of the last tile, P or dS, has been stored. Both have multiplied dS, or the keys would not have
    // come.
    if (thread == 0) wait_bulk_reads();
    named_sync<stored, 128>();
    constexpr int given = Side == 0 ? 16 : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i * 128] =
          make_float4(acc[given + 4 * i], acc[given + 4 * i + 1], acc[given + 4 * i + 2], acc[given + 4 * i + 3]);
    }
    named_sync<sent, 256>();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = from[i * 128];
      other[4 * i] = four.x;
      other[4 * i + 1] = four.y;
      other[4 * i + 2] = four.z;
      other[4 * i + 3] = four.w;
    }
    named_sync<taken, 256>();
  }

  /// P and dS of this warpgroup's heads, to shared memory. Rows are keys, columns 8 i + 2 (lane % 4) + e heads.
  __device__ __forceinline__ void differentiate(const SparseBackwardParams& p, Shared& s, unsigned set,
                                                const float (&acc)[32], const float (&other)[16], float (&sums)[2]) {
    constexpr int kept = Side == 0 ? 0 : 16;
    const std::uint32_t there = static_cast<std::uint32_t>(s.there[warp]) >> (lane / 4);
    const bool mine[2] = {(there & 1U) != 0, (there >> 8 & 1U) != 0};
    const HeadPair* statistics = s.statistics[set][Side] + (lane & 3);
    const int to_row = lane & 15;
    const std::uint32_t to = shared_address(s.x[0]) + (warp * 16 + to_row) * 128;
    sums[0] = sums[1] = 0.0F;
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      std::uint32_t weights[4], gradients[4];
#pragma unroll
      for (int one = 0; one < 2; ++one) {
        const int i = 2 * two + one;
        const float4 heads = *reinterpret_cast<const float4*>(statistics + 4 * i);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float weight[2], gradient[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = 4 * i + 2 * half + e;
            const float score = Side == 0 ? acc[kept + at] : other[at], dp = Side == 0 ? other[at] : acc[kept + at];
            const float lse = e == 0 ? heads.x : heads.y, delta = e == 0 ? heads.z : heads.w;
            // Chosen, not multiplied: without a key in the whole row lse may be -infinity.
            weight[e] = mine[half] ? exp2_fast(fmaf(score, p.scale_log2, -lse)) : 0.0F;
            gradient[e] = mine[half] ? weight[e] * (dp - delta) * p.scale : 0.0F;
            sums[half] += weight[e];
          }
          weights[2 * one + half] = pack_bf16(weight[0], weight[1]);
          gradients[2 * one + half] = pack_bf16(gradient[0], gradient[1]);
        }
      }
      const std::uint32_t chunk = static_cast<std::uint32_t>((4 * Side + 2 * two + lane / 16) ^ (to_row & 7)) * 16;
      store_matrices(to + chunk, weights[0], weights[1], weights[2], weights[3]);
      store_matrices(to + slice_bytes + chunk, gradients[0], gradients[1], gradients[2], gradients[3]);
    }
  }

  /// Of the keys of this thread's rows, over the heads that the quad has.
  static __device__ __forceinline__ void sum_in_quad(float (&sums)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] += __shfl_xor_sync(whole_warp, sums[half], 1);
      sums[half] += __shfl_xor_sync(whole_warp, sums[half], 2);
    }
  }

  /// dQ of this warpgroup's columns; frees slices as they are done with.
  __device__ __forceinline__ void multiply(Shared& s, bool fresh) {
    constexpr int first = 4 * Side;
    const std::uint32_t ds = transposed_operand(s.x[1], slice_bytes);
    const std::uint32_t k = transposed_operand(s.k[first], slice_bytes);
    if constexpr (has_rope) {
      s.k_full[8].wait(k_parity);
      fence_async_shared();
    }
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_tt(dq[part], ds + step * transposed_step, k + 2 * part * (slice_bytes / 16) + step * transposed_step,
                 !fresh || step > 0);
      }
      wgmma_commit();
    }
    if constexpr (has_rope) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_tt(rope, ds + step * transposed_step, k + 4 * (slice_bytes / 16) + step * transposed_step,
                 !fresh || step > 0);
      }
      wgmma_commit();
    }
    wgmma_wait<has_rope ? 2 : 1>();
    release(s.k_empty[first]);
    release(s.k_empty[first + 1]);
    wgmma_wait<has_rope ? 1 : 0>();
    release(s.k_empty[first + 2]);
    release(s.k_empty[first + 3]);
    if constexpr (has_rope) {
      wgmma_wait<0>();
      release(s.k_empty[8]);
      pin(rope);
    }
    pin(dq[0]);
    pin(dq[1]);
  }

  __device__ __forceinline__ void tile(const SparseBackwardParams& p, Shared& s, const QueryPassItem& item, int number,
                                       unsigned set, bool last) {
    float acc[32], other[16], sums[2];
    score(s, acc);
    if (last) release(s.empty[Side]);
    exchange(s, acc, other);
    differentiate(p, s, set, acc, other, sums);
    if (p.head_sums != nullptr) {
      sum_in_quad(sums);
      if (Side == 0 && (lane & 3) == 0) {
        s.sums[warp * 16 + lane / 4] = sums[0];
        s.sums[warp * 16 + lane / 4 + 8] = sums[1];
      }
    }
    fence_async_shared();
    named_sync<written, 256>();
    if (thread == 0) {
      std::uint8_t* to = weights_of(p, item.block_row, number) + (Side * p.head_blocks + item.block) * slice_bytes;
      store_bulk(to, s.x[Side], slice_bytes, policy);
      commit_bulk_stores();
    }
    multiply(s, number == 0);
    k_parity ^= 1U;
    if (Side == 1 && p.head_sums != nullptr && (lane & 3) == 0) {
      // The head blocks of a row add to zeros: one or two, whose order does not show.
      const int row = warp * 16 + lane / 4;
      float* to = p.head_sums + item.block_row * p.topk + number * tile_rows + row;
      atomicAdd(to, s.sums[row] + sums[0]);
      atomicAdd(to + 8, s.sums[row + 8] + sums[1]);
    }
  }

  /// Columns `column` .. + 2 Count of dQ.
  template <int Count>
  __device__ __forceinline__ void write(const SparseBackwardParams& p, const QueryPassItem& item,
                                        const float (&acc)[Count], int column, bool empty) const {
    const int quad = lane & 3, head = item.block * block_heads + warp * 16 + lane / 4;
    std::uint16_t* to = p.dq + item.query * p.dq_row_stride + head * p.dq_head_stride + column + 8 * quad;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int group = 0; group < Count / 16; ++group) {
        std::uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (4 * group + i) + 2 * half;
          v[i] = empty ? 0U : pack_bf16(acc[at], acc[at + 1]);
        }
        const uint4 eight = gather_eight(v, quad);
        if (head + 8 * half < p.heads) {
          *reinterpret_cast<uint4*>(to + 8 * half * p.dq_head_stride + 32 * group) = eight;
        }
      }
    }
  }

  __device__ __forceinline__ void run(const SparseBackwardParams& p, Shared& s) {
    thread = static_cast<int>(threadIdx.x) & 127;
    lane = thread & 31;
    warp = thread / 32;
    policy = evict_first_policy();
    unsigned count = 0;
    for (std::int64_t number = blockIdx.x; number < p.rows * p.head_blocks; number += gridDim.x) {
      const QueryPassItem item(p, number);
      const int tiles = tiles_of(row_length(p, item.query));
      if (tiles > 0) {
        const unsigned set = count++ & 1U;
        s.full[Side].wait(set);
        for (int i = 0; i < tiles; ++i) tile(p, s, item, i, set, i + 1 == tiles);
      }
      write(p, item, dq[0], 256 * Side, tiles == 0);
      write(p, item, dq[1], 256 * Side + 128, tiles == 0);
      if constexpr (has_rope) write(p, item, rope, 512, tiles == 0);
    }
    if (thread == 0) wait_bulk_stores();
  }
};

template <int Slices>
__global__ void __launch_bounds__(query_pass_threads, 1)
    sparse_backward_queries_kernel(const __grid_constant__ SparseBackwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  auto& s = set_up<QueryPassShared<Slices>>(storage);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    raise_registers<query_pass_matrix_registers>();
    QueryPassMatrixRole<Slices, 0> role;
    role.run(p, s);
  } else if (group == 1) {
    raise_registers<query_pass_matrix_registers>();
    QueryPassMatrixRole<Slices, 1> role;
    role.run(p, s);
  } else {
    lower_registers<query_pass_gather_registers>();
    QueryPassGatherRole<Slices>::run(p, s);
  }
}

}  // namespace tandem::detail::sm90
