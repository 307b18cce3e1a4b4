// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/cpu/index_scores.hpp"
#include "kernels/cpu/row_tiles.hpp"
#include "kernels/cpu/scatter.hpp"

namespace tandem::detail::cpu {
namespace {

constexpr std::int64_t workspace_bytes = std::int64_t{16} << 20;
constexpr std::int64_t most_block_rows = 256;
constexpr double least_target = 1e-10;
static_assert(tile_keys <= score_tile_keys);

/// Loss of a row, its d_index_q and d_index_w, and the coefficients by which its index_q enters d_index_k.
class LossWorker {
 public:
  LossWorker(const Context& context, const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss)
      : micro_(context.micro),
        in_(in),
        support_(support),
        loss_(loss),
        heads_(in.index_q.size(1)),
        queries_(micro_, in.index_q),
        scorer_(micro_, in),
        tiles_(micro_, in.index_k),
        dw_(static_cast<std::size_t>(heads_)),
        accumulators_(static_cast<std::size_t>(heads_)) {}

  void run(std::int64_t t, std::int64_t slot, ScatterBlock* block) {
    read_support(t);
    score(t);
    const double value = differentiate_scores(t);
    if (loss_.loss.valid()) *entry<double>(loss_.loss, t) = value * loss_.loss_scale;
    float* coefficients = block != nullptr ? block->set_row(slot, keys_.keys) : nullptr;
    if (coefficients != nullptr || loss_.d_index_q.valid() || loss_.d_index_w.valid()) {
      differentiate_dots(t, coefficients);
    }
  }

 private:
  void read_support(std::int64_t t) {
    if (support_.sparse()) {
      keys_.read(support_.indices, support_.length, t, in_.index_k.size(0));
    } else {
      keys_.assign_range(in_.key_begin[static_cast<std::size_t>(t)], in_.key_end[static_cast<std::size_t>(t)]);
    }
    tiles_.start(keys_);
  }

  /// Landed row of the support's i-th key.
  std::int64_t key(std::int64_t i) const { return keys_.keys[static_cast<std::size_t>(i)]; }

  /// Dots of a tile, [heads, stride of the tile]: tiles lie one after another.
  float* tile_dots(std::int64_t first) { return z_.floats(0) + first * heads_; }

  void score(std::int64_t t) {
    const std::int64_t padded = (keys_.size() + tile_keys - 1) / tile_keys * tile_keys;
    float* q = q_.floats(heads_ * index_dim);
    for (std::int64_t h = 0; h < heads_; ++h) queries_.copy_row(t, h, q + h * index_dim);
    z_.floats(padded * heads_);
    float* scores = scores_.floats(padded);
    tiles_.walk([&](std::int64_t first, std::int64_t count, const float* const* rows) {
      scorer_.set_keys(rows, count, [&](std::int64_t i) { return key(first + i); });
      scorer_.dots(q, heads_, tile_dots(first));
      scorer_.combine(tile_dots(first), entry<float>(in_.index_w, t), scores + first);
    });
  }

  /// Replaces each score by its gradient; returns the row's KL divergence.
  double differentiate_scores(std::int64_t t) {
    float* scores = scores_.floats(0);
    const float* head_sums = entry<float>(loss_.head_sums, t - loss_.rows.begin);
    double total = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < keys_.size(); ++i) {
      total += head_sums[keys_.entries[static_cast<std::size_t>(i)]];
      most = std::max(most, static_cast<double>(scores[i]));
    }
    double sum = 0;
    for (std::int64_t i = 0; i < keys_.size(); ++i) sum += std::exp(static_cast<double>(scores[i]) - most);
    const double lse = most + std::log(sum);
    const double scale = loss_.loss_scale * loss_.upstream;
    double divergence = 0;
    for (std::int64_t i = 0; i < keys_.size(); ++i) {
      const double target = head_sums[keys_.entries[static_cast<std::size_t>(i)]] / std::max(total, least_target);
      const double log_predicted = static_cast<double>(scores[i]) - lse;
      if (target != 0) divergence += target * (std::log(std::max(target, least_target)) - log_predicted);
      scores[i] = static_cast<float>((std::exp(log_predicted) - target) * scale);
    }
    return divergence;
  }

  /// From the scores' gradients through score = scale sum_h w_h relu(q_h . k).
  void differentiate_dots(std::int64_t t, float* coefficients) {
    float* dq = dq_.floats(heads_ * index_dim);
    std::fill_n(dq, heads_ * index_dim, 0.0F);
    std::fill(dw_.begin(), dw_.end(), 0.0);
    for (std::int64_t h = 0; h < heads_; ++h) accumulators_[static_cast<std::size_t>(h)] = dq + h * index_dim;
    tiles_.walk([&](std::int64_t first, std::int64_t count, const float* const* rows) {
      const std::int64_t stride = (count + panel_keys - 1) / panel_keys * panel_keys;
      float* z = tile_dots(first);
      for (std::int64_t h = 0; h < heads_; ++h)
        differentiate_head(t, h, scores_.floats(0) + first, first, count, z + h * stride);
      for (std::int64_t i = 0; coefficients != nullptr && i < count; ++i) {
        for (std::int64_t h = 0; h < heads_; ++h) coefficients[(first + i) * heads_ + h] = z[h * stride + i];
      }
      // So far by the dequantised keys, as d_index_k wants it.
      for (std::int64_t h = 0; scorer_.scaled() && h < heads_; ++h) {
        for (std::int64_t i = 0; i < count; ++i) z[h * stride + i] *= scorer_.key_scale(key(first + i));
      }
      micro_.add_product(accumulators_.data(), heads_, z, stride, rows, count, index_dim);
    });
    for (std::int64_t h = 0; h < heads_; ++h) {
      if (loss_.d_index_q.valid()) write_row(loss_.d_index_q, t, h, dq + h * index_dim);
      if (loss_.d_index_w.valid()) {
        entry<float>(loss_.d_index_w, t)[h] = static_cast<float>(dw_[static_cast<std::size_t>(h)]);
      }
    }
  }

  /// Replaces dots z[0, count) of a head with keys from `first` on by the gradients of the dots with the scaled keys,
  /// and adds to its weight's.
  void differentiate_head(std::int64_t t, std::int64_t h, const float* d_score, std::int64_t first, std::int64_t count,
                          float* z) {
    const float w = entry<float>(in_.index_w, t)[h];
    double& dw = dw_[static_cast<std::size_t>(h)];
    for (std::int64_t i = 0; i < count; ++i) {
      const bool open = !in_.relu || z[i] > 0;
      const double scaled = static_cast<double>(z[i]) * static_cast<double>(scorer_.key_scale(key(first + i)));
      dw += open ? static_cast<double>(d_score[i]) * scaled : 0.0;
      z[i] = open ? d_score[i] * w : 0.0F;
    }
  }

  const Micro& micro_;
  const IndexerInputs& in_;
  const LossSupport& support_;
  const IndexerLoss& loss_;
  std::int64_t heads_;
  RowReader queries_;
  IndexScorer scorer_;
  RowTiles tiles_;
  RowKeys keys_;
  Scratch q_, z_, scores_, dq_;
  std::vector<double> dw_;
  std::vector<float*> accumulators_;
};

std::int64_t most_keys(const IndexerInputs& in, const LossSupport& support, RowRange rows) {
  if (support.sparse()) return support.indices.size(1);
  std::int64_t most = 0;
  for (std::int64_t t = rows.begin; t < rows.end; ++t) {
    const auto i = static_cast<std::size_t>(t);
    most = std::max(most, in.key_end[i] - in.key_begin[i]);
  }
  return most;
}

void add_d_index_k(const Context& context, RowRange rows, const IndexerInputs& in, const IndexerLoss& loss,
                   const ScatterBlock& block) {
  const std::int64_t heads = in.index_q.size(1);
  const RowReader queries(context.micro, in.index_q);
  const ScatterBlock::Band bands[] = {{0, index_dim, heads}};
  block.add_to(
      context, rows.size(), loss.d_index_k, bands, heads * index_dim,
      [&](std::int64_t row, float* scratch, const float** to) { queries.rows(rows.begin + row, scratch, to); });
}

}  // namespace

void indexer_loss(const Context& context, const IndexerInputs& in, const LossSupport& support,
                  const IndexerLoss& loss) {
  const std::int64_t heads = in.index_q.size(1);
  const std::int64_t keys = most_keys(in, support, loss.rows);
  const std::int64_t fitting =
      ScatterBlock::rows_within(workspace_bytes, std::int64_t{2} * context.pool.threads(), keys, heads);
  const std::int64_t block_rows = std::min({fitting, most_block_rows, loss.rows.size()});
  if (block_rows <= 0) return;
  std::optional<ScatterBlock> block;
  if (loss.d_index_k.valid()) block.emplace(block_rows, keys, heads);
  for (std::int64_t first = loss.rows.begin; first < loss.rows.end; first += block_rows) {
    const RowRange part{first, std::min(first + block_rows, loss.rows.end)};
    context.pool.run(part.size(), [&](TaskSource& tasks) {
      LossWorker worker(context, in, support, loss);
      for (std::int64_t r = 0; tasks.next(r);) worker.run(part.begin + r, r, block ? &*block : nullptr);
    });
    if (block) add_d_index_k(context, part, in, loss, *block);
  }
}

}  // namespace tandem::detail::cpu
