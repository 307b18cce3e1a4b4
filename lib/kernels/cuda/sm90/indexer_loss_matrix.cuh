// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_loss_fetch.cuh"
#include "indexer_loss_softmax.cuh"
#include "row_scatter.cuh"
#include "wgmma_attention.cuh"

/// The warpgroup that multiplies for the indexer loss. Keys are the 64 rows of the products that give dots and
/// d_index_k, columns those of d_index_q; heads are their narrow side or inner dimension.
namespace tandem::detail::sm90 {

/// Sums over the eight row pairs of a warp, of Count numbers of each lane: halves go to either lane of a pair as long
/// as there are halves, so that few of them have to be kept. A lane's sums are those of numbers first(lane) and on.
template <int Count>
struct HeadSums {
  static constexpr int kept = Count > 8 ? Count / 8 : 1;

  template <int Distance = 16, int Half = Count / 2>
  static __device__ __forceinline__ int first(int lane) {
    const int at = (lane & Distance) != 0 ? Half : 0;
    if constexpr (Distance == 4) {
      return at;
    } else {
      return at + first<Distance / 2, Half / 2>(lane);
    }
  }
  static __device__ __forceinline__ void add(float (&numbers)[Count], int lane, float (&sums)[kept]) {
    fold<16, Count / 2>(numbers, lane);
#pragma unroll
    for (int i = 0; i < kept; ++i) sums[i] += numbers[i];
  }

 private:
  template <int Distance, int Half>
  static __device__ __forceinline__ void fold(float (&numbers)[Count], int lane) {
    const bool upper = (lane & Distance) != 0;
#pragma unroll
    for (int i = 0; i < Half; ++i) {
      const float sent = upper ? numbers[i] : numbers[i + Half];
      const float own = upper ? numbers[i + Half] : numbers[i];
      numbers[i] = own + __shfl_xor_sync(whole_warp, sent, Distance);
    }
    if constexpr (Half == 0) numbers[0] += __shfl_xor_sync(whole_warp, numbers[0], Distance);
    if constexpr (Distance > 4) fold<Distance / 2, Half / 2>(numbers, lane);
  }
};

template <int Heads, bool E4m3, bool Gradients>
struct LossMatrixRole {
  using Shared = IndexerLossShared<Heads, E4m3>;
  static constexpr int dots = Heads / 2;  ///< of a thread: two keys and a pair of heads in each eight
  static constexpr int eights = Heads / 8;
  static constexpr int steps = (Heads + 15) / 16;        ///< of 16 heads
  static constexpr int granule_step = 32 / 16;           ///< 16 columns of a K-major operand
  static constexpr int transposed_step = 16 * 128 / 16;  ///< 16 rows of a transposed one
  using Weights = float[2 * eights];                     ///< of heads 8 g + 2 (lane % 4) + e at 2 g + e

  const IndexerLossParams& p;
  Shared& s;
  int thread, lane, warp;
  LossRing ring;

  // Of a row.
  std::int64_t row;
  int length, tiles;
  std::uint32_t buffer;  ///< of its queries
  float z[dots];
  float dq[2][dots];  ///< columns 64 i + .. of the heads
  float dw[HeadSums<2 * eights>::kept];

  /// Keys that this thread's rows of a tile are, -1 for none.
  struct Keys {
    int at[2];
  };

  __device__ __forceinline__ LossMatrixRole(const IndexerLossParams& params, Shared& shared)
      : p(params),
        s(shared),
        thread(static_cast<int>(threadIdx.x)),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(static_cast<int>(threadIdx.x) / 32) {}

  __device__ __forceinline__ int entry_of(int tile, int half) const {
    return tile * tile_rows + warp * 16 + lane / 4 + 8 * half;
  }
  __device__ __forceinline__ Keys keys_of(int tile) const {
    Keys keys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int entry = entry_of(tile, half);
      const int key = entry < length ? p.indices[row * p.topk + entry] : -1;
      keys.at[half] = static_cast<std::uint32_t>(key) < p.keys ? key : -1;
    }
    return keys;
  }
  __device__ __forceinline__ float scale_of(int key) const {
    if constexpr (!E4m3) return 1.0F;
    return key >= 0 ? p.k_scale[key] : 0.0F;
  }
  __device__ __forceinline__ void release(Mbarrier& barrier) const {
    if (lane == 0) barrier.arrive();
  }
  static __device__ __forceinline__ void sync() { named_sync<loss_sync, 128>(); }

  __device__ __forceinline__ void load_weights(Weights& w) const {
#pragma unroll
    for (int g = 0; g < eights; ++g) {
      const float2 two = *reinterpret_cast<const float2*>(p.w + row * Heads + 8 * g + 2 * (lane & 3));
      w[2 * g] = two.x;
      w[2 * g + 1] = two.y;
    }
  }

  /// Dots of the tile that comes next with all heads.
  __device__ __forceinline__ void multiply() {
    s.full[ring.stage].wait(ring.parity);
    fence_async_shared();
    const std::uint32_t k = swizzled_operand(s.tile(ring.stage)), q = swizzled_operand(s.q[buffer][0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * index_slices; ++step) {
      const int in_slice = step % 4 * granule_step;
      wgmma_kk(z, k + step / 4 * (slice_bytes / 16) + in_slice, q + step / 4 * (Shared::q_slice_bytes / 16) + in_slice,
               step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(z);
  }

  __device__ __forceinline__ void next_stage() {
    release(s.empty[ring.stage]);
    ring.advance(p.stages);
  }

  /// The first pass: scores of all keys, to shared memory.
  __device__ __forceinline__ void score() {
    Weights w;
    load_weights(w);
    const float floor = p.relu ? 0.0F : -INFINITY;
    float* const scores = s.scores(p.stages);
    Keys keys = keys_of(0);
    for (int tile = 0; tile < tiles; ++tile) {
      const float scale[2] = {scale_of(keys.at[0]), scale_of(keys.at[1])};
      if constexpr (E4m3) keys = keys_of(tile + 1);
      multiply();
      next_stage();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0.0F;
#pragma unroll
        for (int g = 0; g < eights; ++g) {
          sum = fmaf(w[2 * g], max_nan(z[4 * g + 2 * half], floor), sum);
          sum = fmaf(w[2 * g + 1], max_nan(z[4 * g + 2 * half + 1], floor), sum);
        }
        sum += __shfl_xor_sync(whole_warp, sum, 1);
        sum += __shfl_xor_sync(whole_warp, sum, 2);
        if ((lane & 3) == 0) scores[entry_of(tile, half)] = sum * scale[half];
      }
    }
  }

  /// Which dots are open, as masks of pairs of bf16 where a left operand's fragments of 16 heads have them.
  using Masks = std::uint32_t[steps][4];

  /// Adds the tile to dw, and tells which dots are open.
  __device__ __forceinline__ void open(const float (&gradient)[2], Masks& masks) {
    float tile_dw[2 * eights];
#pragma unroll
    for (float& sum : tile_dw) sum = 0.0F;
#pragma unroll
    for (int g = 0; g < 2 * steps; ++g) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t mask = 0;
        if (g < eights) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float dot = z[4 * g + 2 * half + e];
            const bool is_open = dot > 0.0F || !p.relu;
            tile_dw[2 * g + e] = fmaf(is_open ? dot : 0.0F, gradient[half], tile_dw[2 * g + e]);
            mask |= is_open ? 0xFFFFU << (16 * e) : 0U;
          }
        }
        masks[g / 2][g % 2 * 2 + half] = mask;
      }
    }
    HeadSums<2 * eights>::add(tile_dw, lane, dw);
  }

  /// The tile's m g to shared memory, one piece of it; `piece` has g twice, of either row.
  __device__ __forceinline__ void store_gradients(const Masks& masks, const std::uint32_t (&piece)[2],
                                                  std::uint8_t* gradients) const {
    const std::uint32_t to = shared_address(gradients);
    if constexpr (Heads == 8) {
      const int head = lane & 7, granule = (2 * warp + (lane / 8 & 1)) ^ head;
      store_transposed(to + head * 128 + granule * 16, masks[0][0] & piece[0], masks[0][1] & piece[1]);
    } else {
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        const int head = 16 * step + lane / 16 * 8 + (lane & 7), granule = (2 * warp + (lane / 8 & 1)) ^ (head & 7);
        store_transposed(to + head * 128 + granule * 16, masks[step][0] & piece[0], masks[step][1] & piece[1],
                         masks[step][2] & piece[0], masks[step][3] & piece[1]);
      }
    }
  }

  /// What a bf16, given as the upper half of a word, leaves of a number.
  static __device__ __forceinline__ float rest(float number, std::uint32_t upper) {
    return number - __uint_as_float(upper);
  }
  __device__ __forceinline__ void split_weights() const {
    if (thread >= Shared::padded_heads / 2) return;
    float two[2] = {0.0F, 0.0F};
    if (2 * thread < Heads) {
      two[0] = p.w[row * Heads + 2 * thread];
      two[1] = p.w[row * Heads + 2 * thread + 1];
    }
    const std::uint32_t upper = pack_bf16(two[0], two[1]);
    s.weights[thread] = make_uint2(upper, pack_bf16(rest(two[0], upper << 16), rest(two[1], upper & 0xFFFF0000U)));
  }

  /// m w of the tile as left operands: the weights' upper and lower pieces.
  struct OpenWeights {
    std::uint32_t upper[steps][4], lower[steps][4];

    __device__ __forceinline__ OpenWeights(const Masks& masks, const uint2* weights, int quad) {
#pragma unroll
      for (int g = 0; g < 2 * steps; ++g) {
        const uint2 two = weights[4 * g + quad];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = g % 2 * 2 + half;
          upper[g / 2][i] = masks[g / 2][i] & two.x;
          lower[g / 2][i] = masks[g / 2][i] & two.y;
        }
      }
    }
  };

  /// Columns 64 slice .. + 63 of sum_h (m w) q of the tile.
  __device__ __forceinline__ void multiply_queries(float (&acc)[32], const OpenWeights& w, int slice) {
    const std::uint32_t q = transposed_operand(s.q[buffer][slice], Shared::q_slice_bytes);
#pragma unroll
    for (int step = 0; step < steps; ++step) wgmma_rt(acc, w.upper[step], q + step * transposed_step, step > 0);
#pragma unroll
    for (int step = 0; step < steps; ++step) wgmma_rt(acc, w.lower[step], q + step * transposed_step, true);
    wgmma_commit();
  }

  /// Adds the tile's keys to dq.
  __device__ __forceinline__ void multiply_keys(bool first) {
    const std::uint32_t k = transposed_operand(s.tile(ring.stage), slice_bytes);
#pragma unroll
    for (int piece = 0; piece < Shared::pieces; ++piece) {
      const std::uint32_t g = swizzled_operand(s.gradients[piece]);
#pragma unroll
      for (int slice = 0; slice < index_slices; ++slice) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma_tk(dq[slice], k + slice * (slice_bytes / 16) + step * transposed_step, g + step * granule_step,
                   !first || piece + step > 0);
        }
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void scatter(float (&acc)[32], const float (&gradient)[2], const ScatterRows& rows,
                                          int slice) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) acc[i] *= gradient[i / 2 % 2];
    scatter_columns<false>(acc, rows, 64 * slice, lane);
  }

  __device__ __forceinline__ void differentiate_tile(int tile, const Keys& keys) {
    const float scale[2] = {scale_of(keys.at[0]), scale_of(keys.at[1])};
    const float* const of_scores = s.scores(p.stages);
    const float gradient[2] = {of_scores[entry_of(tile, 0)], of_scores[entry_of(tile, 1)]};
    ScatterRows rows;
    float scaled[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows.there[half] = keys.at[half] >= 0 && p.d_index_k != nullptr;
      rows.to[half] = p.d_index_k + keys.at[half] * std::int64_t{128};
      scaled[half] = E4m3 ? gradient[half] * scale[half] : gradient[half];
    }
    multiply();
    Masks masks;
    open(scaled, masks);
    const std::uint32_t upper[2] = {pack_bf16(scaled[0], scaled[0]), pack_bf16(scaled[1], scaled[1])};
    sync();  // all warps have multiplied by the tile before's
    store_gradients(masks, upper, s.gradients[0]);
    if constexpr (E4m3) {
      const float rests[2] = {rest(scaled[0], upper[0] << 16), rest(scaled[1], upper[1] << 16)};
      const std::uint32_t lower[2] = {pack_bf16(rests[0], rests[0]), pack_bf16(rests[1], rests[1])};
      store_gradients(masks, lower, s.gradients[Shared::pieces - 1]);
    }
    fence_async_shared();
    sync();
    const OpenWeights open_weights(masks, s.weights, lane & 3);
    float acc[32];
    wgmma_fence();
    multiply_queries(acc, open_weights, 0);
    multiply_keys(tile == 0);
    wgmma_wait<1>();
    pin(acc);
    scatter(acc, gradient, rows, 0);
    wgmma_fence();
    multiply_queries(acc, open_weights, 1);
    wgmma_wait<0>();
    pin(acc);
    pin(dq[0]);
    pin(dq[1]);
    next_stage();
    if (tile + 1 == tiles) release(s.q_empty[buffer]);
    scatter(acc, gradient, rows, 1);
  }

  /// The second pass: scores have become their gradients.
  __device__ __forceinline__ void differentiate() {
#pragma unroll
    for (float& sum : dw) sum = 0.0F;
    Keys keys = keys_of(0);
    for (int tile = 0; tile < tiles; ++tile) {
      const Keys these = keys;
      keys = keys_of(tile + 1);
      differentiate_tile(tile, these);
    }
    write_d_index_q();
    write_d_index_w();
  }

  /// Past L2, which the rows of d_index_k fill.
  __device__ __forceinline__ void write_d_index_q() const {
    if (p.d_index_q == nullptr) return;
    Weights w;
    load_weights(w);
#pragma unroll
    for (int i = 0; i < 2 * dots; ++i) {
      const int slice = i / dots, at = i % dots, g = at / 4, half = at / 2 % 2, e = at % 2;
      const int head = 8 * g + 2 * (lane & 3) + e, column = 64 * slice + warp * 16 + lane / 4 + 8 * half;
      const std::int64_t to = (row * Heads + head) * 128 + column;
      const float value = w[2 * g + e] * dq[slice][at];
      if constexpr (E4m3) {
        __stcs(static_cast<float*>(p.d_index_q) + to, value);
      } else {
        __stcs(static_cast<std::uint16_t*>(p.d_index_q) + to, static_cast<std::uint16_t>(pack_bf16(value, 0.0F)));
      }
    }
  }

  __device__ __forceinline__ void write_d_index_w() {
    sync();  // all warps have multiplied by the last gradients
    auto* const by_warp = reinterpret_cast<float*>(s.gradients[0]);
    const int first = HeadSums<2 * eights>::first(lane);
#pragma unroll
    for (int i = 0; i < HeadSums<2 * eights>::kept; ++i) {
      const int at = first + i;
      by_warp[warp * Heads + at / 2 * 8 + 2 * (lane & 3) + at % 2] = dw[i];
    }
    sync();
    if (p.d_index_w != nullptr && thread < Heads) {
      p.d_index_w[row * Heads + thread] =
          by_warp[thread] + by_warp[Heads + thread] + by_warp[2 * Heads + thread] + by_warp[3 * Heads + thread];
    }
  }

  /// A row without keys.
  __device__ __forceinline__ void write_zeros() const {
    if (p.loss != nullptr && thread == 0) p.loss[row] = 0.0;
    if constexpr (Gradients) {
      if (p.d_index_q != nullptr) {
        constexpr int granules = Heads * 128 * (E4m3 ? 4 : 2) / 16;
        auto* const to = static_cast<uint4*>(p.d_index_q) + row * granules;
        for (int i = thread; i < granules; i += 128) to[i] = make_uint4(0, 0, 0, 0);
      }
      if (p.d_index_w != nullptr && thread < Heads) p.d_index_w[row * Heads + thread] = 0.0F;
    }
  }

  __device__ __forceinline__ void run() {
    std::uint32_t number = 0;
    for (std::int64_t i = blockIdx.x; i < p.rows; i += gridDim.x) {
      row = p.first_row + i;
      length = row_length(p, row);
      tiles = tiles_of(length);
      if (tiles == 0) {
        write_zeros();
        continue;
      }
      buffer = number & 1U;
      s.q_full[buffer].wait(number >> 1 & 1U);
      ++number;
      fence_async_shared();
      if constexpr (Gradients) split_weights();  // the softmax waits for all threads
      score();
      if constexpr (!Gradients) release(s.q_empty[buffer]);
      RowSoftmax<Heads, E4m3, Gradients>(p, s, i, length, thread).run();
      if constexpr (Gradients) differentiate();
    }
  }
};

template <int Heads, bool E4m3, bool Gradients>
__global__ void __launch_bounds__(loss_threads, 2) indexer_loss_kernel(const __grid_constant__ IndexerLossParams p) {
  extern __shared__ __align__(1024) std::uint8_t storage[];
  auto& s = set_up<IndexerLossShared<Heads, E4m3>>(storage);
  if (threadIdx.x < 128) {
    raise_registers<loss_matrix_registers<E4m3>>();
    LossMatrixRole<Heads, E4m3, Gradients>(p, s).run();
  } else {
    lower_registers<loss_fetch_registers<E4m3>>();
    LossFetchRole<Heads, E4m3, Gradients ? 2 : 1>::run(p, s);
  }
}

}  // namespace tandem::detail::sm90
