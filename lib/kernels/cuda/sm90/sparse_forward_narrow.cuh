// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparse_forward_shared.cuh"
#include "wgmma_attention.cuh"

/// Sparse forward for few heads: a work item is a query. The products are turned round, so that keys and value columns
/// are the 64 rows of an instruction and heads its narrow side: S^T = K Q^T, O^T = V^T P^T. Padding 16 heads to 64 rows
/// would cost four times the matrix work; so, the gather of rows is what bounds it.
///
/// Slices of tiles pass through a ring, each filled again as soon as it has been read for the last time, so that most
/// of shared memory waits for data. Tiles are dealt out to the matrix warpgroups, which accumulate on their own and are
/// added up at the end of the item.
namespace tandem::detail::sm90 {

constexpr int narrow_groups = 2;
constexpr int narrow_threads = 128 * (narrow_groups + 1);
constexpr int tile_marks = 4;
/// Of the 168 that each thread has at launch: a raise waits for ever if the sum is greater.
constexpr int narrow_matrix_registers = 216, narrow_gather_registers = 72;
static_assert(narrow_groups * narrow_matrix_registers + narrow_gather_registers <= 3 * 168);

template <int Heads, int Slices>
struct alignas(1024) NarrowShared {
  static constexpr int q_slice_bytes = Heads * 128;
  static constexpr int q_bytes = 9 * q_slice_bytes;
  static constexpr int fixed_bytes = q_bytes + narrow_groups * Heads * 128 + narrow_groups * 6 * Heads * 4 + 2048;
  static constexpr int ring = (227 * 1024 - fixed_bytes) / slice_bytes;
  static_assert(ring >= 2 * Slices && ring < tile_marks * Slices);  // a mark's last tile has been multiplied

  std::uint8_t slices[ring][slice_bytes];
  /// Queries; between items first halves of accumulators, then outputs.
  std::uint8_t q[9][q_slice_bytes];
  std::uint8_t p[narrow_groups][Heads * 128];
  float maxima[narrow_groups][4][Heads];  ///< of a tile, by warp; at the end sums
  float totals[narrow_groups][2][Heads];  ///< maximum and sum of an item
  std::uint16_t there[tile_marks][4];     ///< which rows of a tile are keys
  Mbarrier q_full;
  Mbarrier full[ring], empty[ring];

  __device__ __forceinline__ void init() {
    q_full.init(1);
    for (int i = 0; i < ring; ++i) {
      full[i].init(128 + 4);
      empty[i].init(4);
    }
  }
};

/// A place in the ring, with the parity of its present use.
template <int Ring>
struct RingPlace {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance(int by) {
    slot += by;
    if (slot >= Ring) {
      slot -= Ring;
      parity ^= 1U;
    }
  }
  __device__ __forceinline__ RingPlace after(int by) const {
    RingPlace place = *this;
    place.advance(by);
    return place;
  }
};

/// Columns that are no value come first, which frees them first.
template <int Slices>
__host__ __device__ constexpr int slice_columns(int place) {
  return Slices == 9 ? (place == 0 ? 8 : place - 1) : place;
}

template <int Heads, int Slices>
struct NarrowGatherRole {
  using Shared = NarrowShared<Heads, Slices>;

  static __device__ __forceinline__ void run(const SparseForwardParams& p, Shared& s) {
    RowGather rows(static_cast<int>(threadIdx.x) - 128 * narrow_groups);
    RingPlace<Shared::ring> place;
    int mark = 0;
    std::int64_t item = blockIdx.x;
    const auto list_of = [&](std::int64_t query) { return p.indices + query * p.topk; };
    int length = item < p.items ? row_length(p, item) : 0;
    int entry = item < p.items ? rows.entry(list_of(item), length, 0) : -1;
    while (item < p.items) {
      const std::int64_t next = item + gridDim.x;
      const int next_length = next < p.items ? row_length(p, next) : 0;
      const int tiles = tiles_of(length);
      for (int tile = 0; tile < tiles; ++tile) {
        const std::uint32_t there = rows.aim(p, entry);
        entry =
            tile + 1 < tiles ? rows.entry(list_of(item), length, tile + 1) : rows.entry(list_of(next), next_length, 0);
#pragma unroll
        for (int i = 0; i < Slices; ++i) {
          s.empty[place.slot].wait(place.parity ^ 1U);
          rows.copy(shared_address(s.slices[place.slot]), slice_columns<Slices>(i));
          if (rows.lane == 0) {
            if (i == 0) s.there[mark][rows.warp] = static_cast<std::uint16_t>(there);
            s.full[place.slot].arrive();
          }
          arrive_after_copies(s.full[place.slot]);
          place.advance(1);
        }
        mark = (mark + 1) % tile_marks;
      }
      if (tiles == 0) entry = rows.entry(list_of(next), next_length, 0);
      length = next_length;
      item = next;
    }
  }
};

template <int Heads, int Slices, int Group>
struct NarrowMatrixRole {
  using Shared = NarrowShared<Heads, Slices>;
  static constexpr int accumulators = Heads / 2;  ///< of a thread: two rows of a column pair in each eight
  static constexpr int columns = Heads / 4;       ///< heads 8 i + 2 (lane % 4) + e at 2 i + e
  static constexpr int all_threads = 128 * narrow_groups, all_ready = 3;

  float out[value_slices][accumulators];
  float maximum[columns], sum[columns];
  int thread, lane, warp;         ///< in the warpgroup
  RingPlace<Shared::ring> place;  ///< first slice of the group's next tile
  int mark;

  static constexpr int group = Group;
  static __device__ __forceinline__ void group_sync() { named_sync<1 + Group, 128>(); }
  static __device__ __forceinline__ void all_sync() { named_sync<all_ready, all_threads>(); }
  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }
  static __device__ __forceinline__ int head_of(int column, int quad) { return column / 2 * 8 + 2 * quad + column % 2; }

  /// Probabilities of a tile from its scores, to shared memory.
  __device__ __forceinline__ void normalise(const SparseForwardParams& p, Shared& s, float (&score)[accumulators]) {
    const int quad = lane & 3;
    const std::uint32_t there = s.there[mark][warp] >> (lane / 4);
    const bool mine[2] = {(there & 1U) != 0, (there >> 8 & 1U) != 0};
    float next[columns];
#pragma unroll
    for (int i = 0; i < accumulators; ++i) score[i] = mine[i / 2 % 2] ? score[i] : -INFINITY;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int at = c / 2 * 4 + c % 2;
      next[c] = fmaxf(score[at], score[at + 2]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        next[c] = fmaxf(next[c], __shfl_xor_sync(whole_warp, next[c], distance));
      }
    }
    if (lane < 4) {
#pragma unroll
      for (int c = 0; c < columns; c += 2) {
        *reinterpret_cast<float2*>(&s.maxima[group][warp][head_of(c, quad)]) = make_float2(next[c], next[c + 1]);
      }
    }
    group_sync();
#pragma unroll
    for (int c = 0; c < columns; c += 2) {
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        const float2 two = *reinterpret_cast<const float2*>(&s.maxima[group][other][head_of(c, quad)]);
        next[c] = fmaxf(next[c], two.x);
        next[c + 1] = fmaxf(next[c + 1], two.y);
      }
    }
    bool moved = false;
    float factor[columns];
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      next[c] = fmaxf(maximum[c], next[c] * p.scale_log2);
      moved |= next[c] != maximum[c];
      const float base = finite_maximum(next[c]);
      factor[c] = exp2_fast(maximum[c] - base);
      maximum[c] = next[c];
      const int at = c / 2 * 4 + c % 2;
      score[at] = exp2_fast(fmaf(score[at], p.scale_log2, -base));
      score[at + 2] = exp2_fast(fmaf(score[at + 2], p.scale_log2, -base));
      sum[c] = fmaf(sum[c], factor[c], score[at] + score[at + 2]);
    }
    const std::uint32_t to = shared_address(s.p[group]);
    if constexpr (Heads == 8) {
      const int row = lane & 7, chunk = (2 * warp + (lane / 8 & 1)) ^ row;
      store_transposed(to + row * 128 + chunk * 16, pack_bf16(score[0], score[1]), pack_bf16(score[2], score[3]));
    } else {
#pragma unroll
      for (int i = 0; i < accumulators; i += 8) {
        const int row = 2 * i + (lane / 16) * 8 + (lane & 7), chunk = (2 * warp + (lane / 8 & 1)) ^ (row & 7);
        store_transposed(to + row * 128 + chunk * 16, pack_bf16(score[i], score[i + 1]),
                         pack_bf16(score[i + 2], score[i + 3]), pack_bf16(score[i + 4], score[i + 5]),
                         pack_bf16(score[i + 6], score[i + 7]));
      }
    }
    fence_async_shared();
    if (__any_sync(whole_warp, moved)) {
#pragma unroll
      for (int slice = 0; slice < value_slices; ++slice) {
#pragma unroll
        for (int i = 0; i < accumulators; ++i) out[slice][i] *= factor[i / 4 * 2 + i % 2];
      }
    }
    group_sync();
  }

  __device__ __forceinline__ void tile(const SparseForwardParams& p, Shared& s) {
    float score[accumulators];
    const std::uint32_t q = swizzled_operand(s.q[0]), k = swizzled_operand(s.slices[0]);
    RingPlace<Shared::ring> at = place;
#pragma unroll
    for (int i = 0; i < Slices; ++i) {
      s.full[at.slot].wait(at.parity);
      fence_async_shared();
      wgmma_fence();
      const std::uint32_t a = k + static_cast<std::uint32_t>(at.slot) * (slice_bytes / 16);
      const std::uint32_t b = q + slice_columns<Slices>(i) * (Shared::q_slice_bytes / 16);
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_kk(score, a + 2 * step, b + 2 * step, i + step != 0);
      at.advance(1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    RingPlace<Shared::ring> value = place;
    if constexpr (Slices > value_slices) {
      release(s.empty[place.slot]);
      value.advance(1);
    }
    normalise(p, s, score);
    const std::uint32_t v = transposed_operand(s.slices[0], slice_bytes);
    const std::uint32_t weights = swizzled_operand(s.p[group]);
    wgmma_fence();
    at = value;
#pragma unroll
    for (int slice = 0; slice < value_slices; ++slice) {
      const std::uint32_t a = v + static_cast<std::uint32_t>(at.slot) * (slice_bytes / 16);
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_tk(out[slice], a + 128 * step, weights + 2 * step, true);
      wgmma_commit();
      at.advance(1);
    }
    release_values<0>(s, value);
  }
  template <int Slice>
  __device__ __forceinline__ void release_values(Shared& s, RingPlace<Shared::ring> at) const {
    if constexpr (Slice < value_slices) {
      wgmma_wait<value_slices - 1 - Slice>();
      release(s.empty[at.slot]);
      at.advance(1);
      release_values<Slice + 1>(s, at);
    }
  }

  /// Goes on by so many tiles, at most as many as there are warpgroups.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll
    for (int i = 0; i < narrow_groups; ++i) {
      if (i < tiles) place.advance(Slices);
    }
    mark = (mark + tiles) % tile_marks;
  }

  /// Adds up the warpgroups' accumulators, each for its half of the columns, and writes the item.
  __device__ __forceinline__ void finish(const SparseForwardParams& p, Shared& s, std::int64_t query) {
    const int quad = lane & 3;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sum[c] += __shfl_xor_sync(whole_warp, sum[c], distance);
      }
      if (lane < 4) s.maxima[group][warp][head_of(c, quad)] = sum[c];
    }
    group_sync();
    if (thread < 4) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int head = head_of(c, quad);
        s.totals[group][0][head] = maximum[c];
        s.totals[group][1][head] =
            s.maxima[group][0][head] + s.maxima[group][1][head] + s.maxima[group][2][head] + s.maxima[group][3][head];
      }
    }
    all_sync();
    float factor[columns];
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int head = head_of(c, quad);
      float top = p.sink != nullptr && head < p.heads ? p.sink[head] * log2_e : -INFINITY;
      const float sink = top;
#pragma unroll
      for (int g = 0; g < narrow_groups; ++g) top = fmaxf(top, s.totals[g][0][head]);
      const float base = finite_maximum(top);
      float total = exp2_fast(sink - base);
#pragma unroll
      for (int g = 0; g < narrow_groups; ++g) {
        total = fmaf(s.totals[g][1][head], exp2_fast(s.totals[g][0][head] - base), total);
      }
      factor[c] = total > 0.0F ? exp2_fast(maximum[c] - base) / total : 0.0F;
      if (Group == 0 && thread < 4 && head < p.heads) {
        p.lse[query * p.heads + head] = top == -INFINITY ? top : (base + log2f(total)) * ln_2;
      }
    }
#pragma unroll
    for (int slice = 0; slice < value_slices; ++slice) {
#pragma unroll
      for (int i = 0; i < accumulators; ++i) out[slice][i] *= factor[i / 4 * 2 + i % 2];
    }
    // In turns: there is room for half of one warpgroup's accumulators.
    auto* exchanged = reinterpret_cast<float*>(s.q) + thread;
    static_assert(Shared::q_bytes >= 4 * accumulators * 128 * 4);
#pragma unroll
    for (int taker = 0; taker < 2; ++taker) {
      if (Group != taker) {
#pragma unroll
        for (int slice = 0; slice < 4; ++slice) {
#pragma unroll
          for (int i = 0; i < accumulators; ++i) {
            exchanged[(slice * accumulators + i) * 128] = out[4 * taker + slice][i];
          }
        }
      }
      all_sync();
      if (Group == taker) {
#pragma unroll
        for (int slice = 0; slice < 4; ++slice) {
#pragma unroll
          for (int i = 0; i < accumulators; ++i) {
            out[4 * taker + slice][i] += exchanged[(slice * accumulators + i) * 128];
          }
        }
      }
      all_sync();
    }
    write_out<4 * Group, 4>(p, s, query);
  }

  /// Through shared memory, where rows become heads.
  template <int From, int Count>
  __device__ __forceinline__ void write_out(const SparseForwardParams& p, Shared& s, std::int64_t query) {
    constexpr int pitch = Count * 128 + 16;
    static_assert(narrow_groups * pitch * Heads <= Shared::q_bytes);
    std::uint8_t* stage = &s.q[0][0] + group * (pitch * Heads);
    const std::uint32_t to = shared_address(stage);
#pragma unroll
    for (int slice = 0; slice < Count; ++slice) {
      const float(&o)[accumulators] = out[From + slice];
      const int at = slice * 128 + warp * 32 + (lane / 8 & 1) * 16;
      if constexpr (Heads == 8) {
        store_transposed(to + (lane & 7) * pitch + at, pack_bf16(o[0], o[1]), pack_bf16(o[2], o[3]));
      } else {
#pragma unroll
        for (int i = 0; i < accumulators; i += 8) {
          const int head = 2 * i + (lane / 16) * 8 + (lane & 7);
          store_transposed(to + head * pitch + at, pack_bf16(o[i], o[i + 1]), pack_bf16(o[i + 2], o[i + 3]),
                           pack_bf16(o[i + 4], o[i + 5]), pack_bf16(o[i + 6], o[i + 7]));
        }
      }
    }
    group_sync();
    constexpr int chunks = Count * 8;
    std::uint16_t* rows = p.out + query * p.out_row_stride + From * 64;
    for (int i = thread; i < Heads * chunks; i += 128) {
      const int head = i / chunks, chunk = i % chunks;
      if (head < p.heads) {
        *reinterpret_cast<uint4*>(rows + head * p.out_head_stride + chunk * 8) =
            *reinterpret_cast<const uint4*>(stage + head * pitch + chunk * 16);
      }
    }
  }

  __device__ __forceinline__ void run(const SparseForwardParams& p, Shared& s) {
    thread = static_cast<int>(threadIdx.x) & 127;
    lane = thread & 31;
    warp = thread / 32;
    unsigned q_parity = 0;
    mark = 0;
    for (std::int64_t item = blockIdx.x; item < p.items; item += gridDim.x) {
      const int tiles = tiles_of(row_length(p, item));
#pragma unroll
      for (int slice = 0; slice < value_slices; ++slice) {
#pragma unroll
        for (int i = 0; i < accumulators; ++i) out[slice][i] = 0.0F;
      }
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        maximum[c] = -INFINITY;
        sum[c] = 0.0F;
      }
      all_sync();  // nobody reads the last item's outputs any more
      if (tiles > 0) {
        if (Group == 0 && thread == 0) {
          fence_async_shared();
          s.q_full.arrive_expect(Slices * Shared::q_slice_bytes);
          for (int slice = 0; slice < Slices; ++slice) {
            copy_box(s.q[slice], &p.q_map, slice * 64, 0, static_cast<int>(item), s.q_full);
          }
        }
        s.q_full.wait(q_parity);
        q_parity ^= 1U;
      }
      skip(min(Group, tiles));
      for (int number = Group; number < tiles; number += narrow_groups) {
        tile(p, s);
        skip(min(narrow_groups, tiles - number));
      }
      finish(p, s, item);
    }
  }
};

template <int Heads, int Slices>
__global__ void __launch_bounds__(narrow_threads, 1)
    sparse_forward_narrow_kernel(const __grid_constant__ SparseForwardParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  auto& s = set_up<NarrowShared<Heads, Slices>>(storage);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == narrow_groups) {
    lower_registers<narrow_gather_registers>();
    NarrowGatherRole<Heads, Slices>::run(p, s);
  } else if (group == 0) {
    raise_registers<narrow_matrix_registers>();
    NarrowMatrixRole<Heads, Slices, 0> role;
    role.run(p, s);
  } else {
    raise_registers<narrow_matrix_registers>();
    NarrowMatrixRole<Heads, Slices, 1> role;
    role.run(p, s);
  }
}

}  // namespace tandem::detail::sm90
