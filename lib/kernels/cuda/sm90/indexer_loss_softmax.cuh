// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_loss_shared.cuh"

/// The softmax of a row's scores beside its target: the loss, and the gradients of the scores. In double, as the
/// specification has it: a loss close to 0 is the difference of numbers that are not. That is a few thousand clocks a
/// row beside a hundred thousand.
namespace tandem::detail::sm90 {

constexpr int loss_sync = 1;  ///< named barrier of the matrix warpgroup
constexpr double least_target = 1e-10;

/// Of a number that fits float, to about 2^-50 of it: a division costs a call.
__device__ __forceinline__ double reciprocal(double x) {
  double result = static_cast<double>(__frcp_rn(static_cast<float>(x)));
#pragma unroll
  for (int i = 0; i < 2; ++i) result = fma(result, fma(-x, result, 1.0), result);
  return result;
}

template <int Heads, bool E4m3, bool Gradients>
class RowSoftmax {
 public:
  using Shared = IndexerLossShared<Heads, E4m3>;

  __device__ __forceinline__ RowSoftmax(const IndexerLossParams& p, Shared& s, std::int64_t index, int length,
                                        int thread)
      : p_(p),
        s_(s),
        scores_(s.scores(p.stages)),
        row_(p.first_row + index),
        list_(p.indices + row_ * p.topk),
        head_sums_(p.head_sums + index * p.head_sums_stride),
        length_(length),
        thread_(thread) {}

  /// Replaces each score of the row by its gradient, 0 for entries that are no key; writes the loss. All 128 threads.
  __device__ __forceinline__ void run() {
    named_sync<loss_sync, 128>();
    float most = -INFINITY;
    double total = 0;
    each_key([&](int i, double head_sum) {
      most = fmaxf(most, scores_[i]);
      total += head_sum;
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      most = fmaxf(most, __shfl_xor_sync(whole_warp, most, distance));
    }
    if (thread_ % 32 == 0) s_.maxima[thread_ / 32] = most;
    store_sum(0, total);
    named_sync<loss_sync, 128>();
    most = fmaxf(fmaxf(s_.maxima[0], s_.maxima[1]), fmaxf(s_.maxima[2], s_.maxima[3]));
    const double factor = reciprocal(fmax(read_sum(0), least_target));

    // Of the divergence, sum of target (log target - score + lse), what does not wait for the lse.
    double sum = 0, divergence = 0, weight = 0;
    each_key([&](int i, double head_sum) {
      const double above = static_cast<double>(scores_[i]) - static_cast<double>(most);
      const double exponential = exp(above);
      sum += exponential;
      const double target = head_sum * factor;
      if (target != 0) {
        divergence += target * (log(fmax(target, least_target)) - above);
        weight += target;
      }
      if constexpr (Gradients) scores_[i] = static_cast<float>(exponential);
    });
    store_sum(1, sum);
    store_sum(2, divergence);
    store_sum(3, weight);
    named_sync<loss_sync, 128>();
    sum = read_sum(1);
    weight = read_sum(3);
    if (p_.loss != nullptr && thread_ == 0) {
      divergence = read_sum(2) + (weight != 0 ? weight * log(sum) : 0.0);
      p_.loss[row_] = divergence * p_.loss_scale;
    }
    if constexpr (Gradients) differentiate(reciprocal(sum), factor);
  }

 private:
  /// An entry of the list and its head sum.
  struct Entry {
    std::int32_t key;
    float head_sum;
  };
  __device__ __forceinline__ Entry entry(int i) const {
    return i < length_ ? Entry{list_[i], head_sums_[i]} : Entry{-1, 0.0F};
  }
  /// Calls body(i, whether it is a key, its head sum) for the thread's entries below `end`.
  template <class Body>
  __device__ __forceinline__ void each(int end, const Body& body) const {
#pragma unroll 2
    for (int i = thread_; i < end; i += 128) {
      const Entry now = entry(i);
      body(i, static_cast<std::uint32_t>(now.key) < p_.keys, static_cast<double>(now.head_sum));
    }
  }
  template <class Body>
  __device__ __forceinline__ void each_key(const Body& body) const {
    each(length_, [&](int i, bool is_key, double head_sum) {
      if (is_key) body(i, head_sum);
    });
  }

  __device__ __forceinline__ void store_sum(int which, double value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(whole_warp, value, distance);
    if (thread_ % 32 == 0) s_.sums[which][thread_ / 32] = value;
  }
  __device__ __forceinline__ double read_sum(int which) const {
    return s_.sums[which][0] + s_.sums[which][1] + s_.sums[which][2] + s_.sums[which][3];
  }

  /// From the exponentials; the factors make probabilities and targets of them and the head sums.
  __device__ __forceinline__ void differentiate(double factor, double target_factor) {
    each(tiles_of(length_) * tile_rows, [&](int i, bool is_key, double head_sum) {
      const double gradient = static_cast<double>(scores_[i]) * factor - head_sum * target_factor;
      scores_[i] = is_key ? static_cast<float>(gradient * p_.score_scale) : 0.0F;
    });
    named_sync<loss_sync, 128>();
  }

  const IndexerLossParams& p_;
  Shared& s_;
  float* const scores_;
  const std::int64_t row_;
  const std::int32_t* const list_;
  const float* const head_sums_;
  const int length_, thread_;
};

}  // namespace tandem::detail::sm90
