// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/row_tiles.hpp"
#include "kernels/cpu/scatter.hpp"

namespace tandem::detail::cpu {
namespace {

constexpr std::int64_t workspace_bytes = std::int64_t{16} << 20;
constexpr std::int64_t most_block_rows = 256;

/// First half of the backward of a row: dq, and the coefficients dS and P by which its q and dout enter dkv.
class BackwardWorker {
 public:
  BackwardWorker(const Context& context, const AttentionInputs& in, const AttentionGradients& grads)
      : micro_(context.micro),
        in_(in),
        grads_(grads),
        heads_(in.q.size(1)),
        dim_(in.q.size(2)),
        queries_(micro_, in.q),
        douts_(micro_, grads.dout),
        outs_(micro_, grads.out),
        tiles_(micro_, in.kv),
        q_rows_(static_cast<std::size_t>(heads_)),
        dout_rows_(q_rows_),
        accumulators_(static_cast<std::size_t>(heads_)) {}

  /// `slot` is the row's place in the block; `dsink_terms` receives P_sink * delta of each head, `head_sums` the sum of
  /// P over heads for each entry of the list. Both may be null.
  void run(std::int64_t t, std::int64_t slot, ScatterBlock& block, float* dsink_terms, float* head_sums) {
    keys_.read(in_.indices, in_.length, t, in_.kv.size(0));
    float* coefficients = block.set_row(slot, keys_.keys);
    float* dq = dq_.floats(heads_ * dim_);
    std::fill_n(dq, heads_ * dim_, 0.0F);
    if (dsink_terms != nullptr) std::fill_n(dsink_terms, heads_, 0.0F);
    if (head_sums != nullptr) std::fill_n(head_sums, in_.indices.size(1), 0.0F);
    if (keys_.size() > 0) {
      load_row(t, dsink_terms);
      for (std::int64_t h = 0; h < heads_; ++h) accumulators_[static_cast<std::size_t>(h)] = dq + h * dim_;
      tiles_.start(keys_);
      tiles_.walk([&](std::int64_t first, std::int64_t count, const float* const* rows) {
        differentiate(t, count, rows);
        micro_.add_product(accumulators_.data(), heads_, ds_, tile_keys, rows, count, dim_);
        keep_coefficients(count, coefficients + first * 2 * heads_);
        if (head_sums != nullptr) add_head_sums(first, count, head_sums);
      });
    }
    for (std::int64_t h = 0; h < heads_; ++h) write_row(grads_.dq, t, h, dq + h * dim_);
  }

 private:
  void load_row(std::int64_t t, float* dsink_terms) {
    queries_.rows(t, q_.floats(heads_ * dim_), q_rows_.data());
    douts_.rows(t, dout_.floats(heads_ * value_dim), dout_rows_.data());
    float* out = out_.floats(value_dim);
    delta_ = deltas_.floats(heads_);
    for (std::int64_t h = 0; h < heads_; ++h) {
      const float* row = outs_.row(t, h, out);
      micro_.dots(&row, 1, &dout_rows_[static_cast<std::size_t>(h)], 1, value_dim, delta_ + h, 1);
      if (dsink_terms == nullptr) continue;
      const float p_sink = std::exp(in_.sink.data_as<const float>()[h] - entry<float>(grads_.lse, t)[h]);
      dsink_terms[h] = p_sink * delta_[h];
    }
    p_ = probabilities_.floats(heads_ * tile_keys);
    ds_ = score_gradients_.floats(heads_ * tile_keys);
  }

  /// P and dS [heads, count] of the tile, with row stride tile_keys.
  void differentiate(std::int64_t t, std::int64_t count, const float* const* rows) {
    micro_.dots(q_rows_.data(), heads_, rows, count, dim_, p_, tile_keys);
    micro_.dots(dout_rows_.data(), heads_, rows, count, value_dim, ds_, tile_keys);
    const float* lse = entry<float>(grads_.lse, t);
    for (std::int64_t h = 0; h < heads_; ++h) {
      float* p = p_ + h * tile_keys;
      float* ds = ds_ + h * tile_keys;
      for (std::int64_t i = 0; i < count; ++i) {
        p[i] = std::exp(p[i] * in_.scale - lse[h]);
        ds[i] = p[i] * (ds[i] - delta_[h]) * in_.scale;
      }
    }
  }

  void add_head_sums(std::int64_t first, std::int64_t count, float* to) const {
    for (std::int64_t i = 0; i < count; ++i) {
      float& sum = to[keys_.entries[static_cast<std::size_t>(first + i)]];
      for (std::int64_t h = 0; h < heads_; ++h) sum += p_[h * tile_keys + i];
    }
  }

  void keep_coefficients(std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i, to += 2 * heads_) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        to[h] = ds_[h * tile_keys + i];
        to[heads_ + h] = p_[h * tile_keys + i];
      }
    }
  }

  const Micro& micro_;
  const AttentionInputs& in_;
  const AttentionGradients& grads_;
  std::int64_t heads_, dim_;
  RowReader queries_, douts_, outs_;
  RowTiles tiles_;
  RowKeys keys_;
  Scratch q_, dout_, out_, dq_, deltas_, probabilities_, score_gradients_;
  std::vector<const float*> q_rows_, dout_rows_;
  std::vector<float*> accumulators_;
  float* delta_ = nullptr;
  float* p_ = nullptr;
  float* ds_ = nullptr;
};

/// dkv[key] += dS^T q in all columns, P^T dout in those of the value.
void add_dkv(const Context& context, RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
             const ScatterBlock& block) {
  const std::int64_t heads = in.q.size(1);
  const std::int64_t dim = in.q.size(2);
  const RowReader queries(context.micro, in.q);
  const RowReader douts(context.micro, grads.dout);
  const ScatterBlock::Band bands[] = {{0, value_dim, 2 * heads}, {value_dim, dim - value_dim, heads}};
  block.add_to(context, rows.size(), grads.dkv, bands, heads * (dim + value_dim),
               [&](std::int64_t row, float* scratch, const float** to) {
                 queries.rows(rows.begin + row, scratch, to);
                 douts.rows(rows.begin + row, scratch + heads * dim, to + heads);
               });
}

}  // namespace

void sparse_mla_backward(const Context& context, RowRange rows, const AttentionInputs& in,
                         const AttentionGradients& grads) {
  const std::int64_t heads = in.q.size(1);
  const std::int64_t topk = in.indices.size(1);
  const std::int64_t fitting =
      ScatterBlock::rows_within(workspace_bytes, std::int64_t{2} * context.pool.threads(), topk, 2 * heads);
  const std::int64_t block_rows = std::min({fitting, most_block_rows, rows.size()});
  if (block_rows <= 0) return;
  ScatterBlock block(block_rows, topk, 2 * heads);
  const bool with_sink = grads.dsink.valid();
  std::vector<float> sink_terms(static_cast<std::size_t>(with_sink ? block_rows * heads : 0));
  std::vector<double> dsink(static_cast<std::size_t>(heads));
  for (std::int64_t first = rows.begin; first < rows.end; first += block_rows) {
    const RowRange part{first, std::min(first + block_rows, rows.end)};
    context.pool.run(part.size(), [&](TaskSource& tasks) {
      BackwardWorker worker(context, in, grads);
      for (std::int64_t r = 0; tasks.next(r);) {
        worker.run(part.begin + r, r, block, with_sink ? sink_terms.data() + r * heads : nullptr,
                   grads.head_sums.valid() ? entry<float>(grads.head_sums, part.begin + r - rows.begin) : nullptr);
      }
    });
    add_dkv(context, part, in, grads, block);
    for (std::size_t i = 0; with_sink && i < static_cast<std::size_t>(part.size() * heads); ++i) {
      dsink[i % static_cast<std::size_t>(heads)] += sink_terms[i];
    }
  }
  for (std::int64_t h = 0; with_sink && h < heads; ++h) {
    grads.dsink.data_as<float>()[h] -= static_cast<float>(dsink[static_cast<std::size_t>(h)]);
  }
}

}  // namespace tandem::detail::cpu
