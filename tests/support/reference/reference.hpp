// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// DeepSeek Sparse Attention in float64, unsharded, written for being right: what the kernels and the operator are
/// compared with. It shares no code with the library. Formulas: DeepSeek-V3.2 and Megatron-Core's DSA indexer loss.
namespace tandem::reference {

constexpr std::int64_t index_dim = 128;
constexpr std::int64_t value_dim = 512;

/// Inputs, exactly as the library got them (bf16 ones decoded). All arrays are dense; keys are numbered as in kv.
struct Problem {
  std::int64_t rows = 0;  ///< queries
  std::int64_t keys = 0;
  std::int64_t heads = 0, index_heads = 0, dim = 576, topk = 0;
  double scale = 1;
  bool relu = true;
  std::vector<std::int64_t> begin, end;  ///< row t sees keys [begin[t], end[t])
  std::vector<float> q;                  ///< [rows, heads, dim]
  std::vector<float> kv;                 ///< [keys, dim]
  std::vector<float> sink;               ///< [heads] or empty
  std::vector<float> dout;               ///< [rows, heads, value_dim]; empty: no gradients
  std::vector<float> index_q;            ///< [rows, index_heads, index_dim]
  std::vector<float> index_w;            ///< [rows, index_heads]
  std::vector<float> index_k;            ///< [keys, index_dim]
  std::vector<float> index_k_scale;      ///< [keys]: scores are multiplied by them; or empty
  double loss_scale = 1;                 ///< usually 1 / real rows
  double upstream = 1;                   ///< gradient of the caller's loss by the indexer loss
};

std::vector<float> decode_bf16(std::span<const std::uint16_t> bits);
std::vector<float> decode_e4m3(std::span<const std::uint8_t> bits);

/// Rows [begin, end) that a call computes: callers with much data go through it in portions.
struct Portion {
  std::int64_t begin = 0, end = 0;
};

/// Per row, distinct keys in any order.
using Lists = std::vector<std::vector<std::int64_t>>;

/// Scores of the keys that a row sees, from begin[row] on.
std::vector<double> scores(const Problem& p, std::int64_t row);

struct Topk {
  std::vector<std::int64_t> keys;  ///< ascending
  double last_taken = 0;           ///< score of the worst that was taken, and of the best that was not;
  double first_left = 0;           ///< both NaN for rows that take all they see, first_left if all others are NaN
  std::int64_t nans = 0;           ///< visible keys that score NaN; 0 for rows that take all
};
Topk topk(const Problem& p, std::int64_t row);
/// Lists of all rows.
Lists topk_lists(const Problem& p);

/// How far from its float64 value an fp32 score may lie, in whatever order it was summed: gamma(index_dim + Hi + 2) *
/// sum_h |w_h| sum_c |q_hc| |k_c| with gamma(n) = n u / (1 - n u), u = 2^-24 (Higham, Accuracy and Stability,
/// section 3.1); times the key's scale, and gamma of one more, if there are scales.
double score_bound(const Problem& p, std::int64_t row, std::int64_t key);

enum class SetVerdict {
  equal,
  near_tie,  ///< differs only in keys whose scores lie within the rounding bounds of each other
  mismatch,
};
/// Judges the set selected for a row in fp32. A wrong count, a repeated or an invisible key is a mismatch.
SetVerdict compare_topk(const Problem& p, std::int64_t row, std::span<const std::int64_t> selected);

struct Attention {
  std::vector<double> out;    ///< [portion, heads, value_dim]
  std::vector<double> lse;    ///< [portion, heads]
  std::vector<double> dq;     ///< [portion, heads, dim]; empty without dout, like the next two
  std::vector<double> dkv;    ///< [keys, dim], of the portion's rows
  std::vector<double> dsink;  ///< [heads], of the portion's rows; empty without sink
};
/// Attention of a portion's rows over their lists, forward and (with dout) backward.
Attention attention(const Problem& p, const Lists& lists, Portion portion, int threads = 0);
Attention attention(const Problem& p, const Lists& lists);

/// Attention probabilities of a row over `keys`, summed over heads.
std::vector<double> head_sums(const Problem& p, std::int64_t row, std::span<const std::int64_t> keys);

/// An argument of relu, q_h . k, that lies within the rounding bound of its fp32 value from 0: gamma(index_dim + 2) *
/// sum_c |q_hc| |k_c|, as in score_bound. fp32 may see it on the other side of 0, where the loss, the scores and
/// d_index_w hardly change but the gradients of q_h and k jump.
struct Kink {
  std::int64_t row = 0;  ///< in the portion
  std::int64_t head = 0;
  std::int64_t key = 0;
  /// On the other side d_index_q[row, head] is greater by jump * k (k times its scale, if it has one), d_index_k[key]
  /// by jump * q_h.
  double jump = 0;
};

struct IndexerLoss {
  std::vector<double> loss;       ///< [portion], times loss_scale
  std::vector<double> magnitude;  ///< [portion], sum of the magnitudes of the terms of each loss
  std::vector<double> d_index_q;  ///< [portion, index_heads, index_dim]
  std::vector<double> d_index_w;  ///< [portion, index_heads]
  std::vector<double> d_index_k;  ///< [keys, index_dim], of the portion's rows; by k times its scale
  std::vector<Kink> kinks;        ///< by row, then by head
};
/// KL(target || softmax(score)) over the lists, or over all that a row sees if `lists` is null. The target is computed
/// here, from q, kv and sink, unless `given_head_sums` has it (per row, in the order of the row's list).
IndexerLoss indexer_loss(const Problem& p, const Lists* lists, Portion portion, int threads = 0,
                         const std::vector<std::vector<double>>* given_head_sums = nullptr);
/// Near ties of relu, judged like those of the top-k: the gradients at whichever side of its kinks the tested code saw.
/// Takes the other side of a kink if that brings d_index_q[row, head] nearer to what the tested code `got` there
/// ([portion, index_heads, index_dim]), in d_index_q and d_index_k alike. Of several kinks of a vector the one that
/// brings it nearest goes first. Returns how many were turned. Nothing but arguments within the bound is excused.
std::int64_t settle_kinks(const Problem& p, Portion portion, IndexerLoss& loss, std::span<const double> got);

/// ||x - ref|| / ||ref|| of values that come in portions; the absolute error where ||ref|| is nearly 0. A NaN or
/// infinity on one side only makes it infinite.
class RelativeError {
 public:
  static constexpr double nearly_zero = 1e-12;
  void add(double got, double want) {
    if (got == want || (std::isnan(got) && std::isnan(want))) {
      if (std::isfinite(want)) reference_ += want * want;
      return;
    }
    difference_ += (got - want) * (got - want);
    if (std::isnan(difference_)) difference_ = INFINITY;
    if (std::isfinite(want)) reference_ += want * want;
  }
  template <class Got, class Want>
  void add(std::span<const Got> got, std::span<const Want> want) {
    for (std::size_t i = 0; i < got.size(); ++i) add(static_cast<double>(got[i]), static_cast<double>(want[i]));
  }
  double value() const {
    const double size = std::sqrt(reference_);
    return size < nearly_zero ? std::sqrt(difference_) : std::sqrt(difference_) / size;
  }

 private:
  double difference_ = 0;
  double reference_ = 0;
};

}  // namespace tandem::reference
