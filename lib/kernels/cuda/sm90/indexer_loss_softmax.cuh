// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "indexer_loss_shared.cuh"

/// The softmax of a row's scores beside its target: the loss, and the gradients of the scores. In double, as the
/// specification has it: a loss close to 0 is the difference of numbers that are not. That is a few thousand clocks a
/// row beside a hundred thousand.
namespace tandem::detail::sm90 {

constexpr int loss_sync = 1;  ///< named barrier of the matrix warpgroup
constexpr double least_target = 1e-10;

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
    each_key([&](int i) {
      most = fmaxf(most, scores_[i]);
      total += static_cast<double>(head_sums_[i]);
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      most = fmaxf(most, __shfl_xor_sync(whole_warp, most, distance));
    }
    if (thread_ % 32 == 0) s_.maxima[thread_ / 32] = most;
    store_sum(0, total);
    named_sync<loss_sync, 128>();
    most = fmaxf(fmaxf(s_.maxima[0], s_.maxima[1]), fmaxf(s_.maxima[2], s_.maxima[3]));
    const double divisor = fmax(read_sum(0), least_target);

    // Of the divergence, sum of target (log target - score + lse), what does not wait for the lse.
    double sum = 0, divergence = 0, weight = 0;
    each_key([&](int i) {
      const double above = static_cast<double>(scores_[i]) - static_cast<double>(most);
      const double exponential = exp(above);
      sum += exponential;
      const double target = static_cast<double>(head_sums_[i]) / divisor;
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
    if constexpr (Gradients) differentiate(sum, divisor);
  }

 private:
  __device__ __forceinline__ bool is_key(int i) const {
    return i < length_ && static_cast<std::uint32_t>(list_[i]) < p_.keys;
  }
  template <class Body>
  __device__ __forceinline__ void each_key(const Body& body) const {
    for (int i = thread_; i < length_; i += 128) {
      if (is_key(i)) body(i);
    }
  }

  __device__ __forceinline__ void store_sum(int which, double value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(whole_warp, value, distance);
    if (thread_ % 32 == 0) s_.sums[which][thread_ / 32] = value;
  }
  __device__ __forceinline__ double read_sum(int which) const {
    return s_.sums[which][0] + s_.sums[which][1] + s_.sums[which][2] + s_.sums[which][3];
  }

  __device__ __forceinline__ void differentiate(double sum, double divisor) {
    const double factor = 1.0 / sum;
    for (int i = thread_; i < tiles_of(length_) * tile_rows; i += 128) {
      double gradient = 0;
      if (is_key(i)) {
        const double target = static_cast<double>(head_sums_[i]) / divisor;
        gradient = (static_cast<double>(scores_[i]) * factor - target) * p_.score_scale;
      }
      scores_[i] = static_cast<float>(gradient);
    }
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
