// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/row_tiles.hpp"
#include "kernels/cpu/softmax.hpp"

namespace tandem::detail::cpu {

namespace {

class ForwardWorker {
 public:
  ForwardWorker(const Context& context, const AttentionInputs& in, const AttentionOutputs& out)
      : micro_(context.micro),
        in_(in),
        out_(out),
        heads_(in.q.size(1)),
        queries_(micro_, in.q),
        tiles_(micro_, in.kv),
        q_rows_(static_cast<std::size_t>(heads_)),
        accumulators_(static_cast<std::size_t>(heads_)) {}

  void run(std::int64_t t) {
    keys_.read(in_.indices, in_.length, t, in_.kv.size(0));
    if (out_.head_sums.valid()) std::fill_n(entry<float>(out_.head_sums, t), out_.head_sums.size(1), 0.0F);
    float* out = sums_.floats(heads_ * value_dim);
    std::fill_n(out, heads_ * value_dim, 0.0F);
    if (keys_.size() == 0) {
      write_empty_lse(t);
    } else {
      probabilities(t);
      if (out_.head_sums.valid()) write_head_sums(t);
      multiply_values(out);
    }
    for (std::int64_t h = 0; h < heads_; ++h) write_row(out_.out, t, h, out + h * value_dim);
  }

 private:
  void write_empty_lse(std::int64_t t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const float* sink = sink_of(h);
      entry<float>(out_.lse, t)[h] = sink != nullptr ? *sink : -std::numeric_limits<float>::infinity();
    }
  }

  void probabilities(std::int64_t t) {
    const std::int64_t count = keys_.size();
    p_ = logits_.floats(heads_ * count);
    queries_.rows(t, q_.floats(heads_ * queries_.width()), q_rows_.data());
    tiles_.start(keys_);
    tiles_.walk([&](std::int64_t first, std::int64_t keys, const float* const* rows) {
      micro_.dots(q_rows_.data(), heads_, rows, keys, queries_.width(), p_ + first, count);
    });
    for (std::int64_t h = 0; h < heads_; ++h) {
      entry<float>(out_.lse, t)[h] = softmax_row(p_ + h * count, count, in_.scale, sink_of(h));
    }
  }

  void write_head_sums(std::int64_t t) {
    float* to = entry<float>(out_.head_sums, t);
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t i = 0; i < keys_.size(); ++i) {
        to[keys_.entries[static_cast<std::size_t>(i)]] += p_[h * keys_.size() + i];
      }
    }
  }

  void multiply_values(float* out) {
    for (std::int64_t h = 0; h < heads_; ++h) accumulators_[static_cast<std::size_t>(h)] = out + h * value_dim;
    tiles_.walk([&](std::int64_t first, std::int64_t keys, const float* const* rows) {
      micro_.add_product(accumulators_.data(), heads_, p_ + first, keys_.size(), rows, keys, value_dim);
    });
  }

  const float* sink_of(std::int64_t h) const {
    return in_.sink.valid() ? in_.sink.data_as<const float>() + h : nullptr;
  }

  const Micro& micro_;
  const AttentionInputs& in_;
  const AttentionOutputs& out_;
  std::int64_t heads_;
  RowReader queries_;
  RowTiles tiles_;
  RowKeys keys_;
  Scratch q_, logits_, sums_;
  std::vector<const float*> q_rows_;
  std::vector<float*> accumulators_;
  float* p_ = nullptr;  ///< [heads, keys] of the current row
};

}  // namespace

void sparse_mla_forward(const Context& context, const AttentionInputs& in, const AttentionOutputs& out) {
  context.pool.run(in.q.size(0), [&](TaskSource& tasks) {
    ForwardWorker worker(context, in, out);
    for (std::int64_t t = 0; tasks.next(t);) worker.run(t);
  });
}

}  // namespace tandem::detail::cpu
