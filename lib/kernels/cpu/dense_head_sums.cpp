// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cpu/row_tiles.hpp"
#include "kernels/cpu/softmax.hpp"

namespace tandem::detail::cpu {
namespace {

/// Most logits of a row that are held at once, but those of four heads always are.
constexpr std::int64_t most_logits = std::int64_t{1} << 20;

class DenseWorker {
 public:
  DenseWorker(const Context& context, const AttentionInputs& in)
      : micro_(context.micro),
        in_(in),
        heads_(in.q.size(1)),
        queries_(micro_, in.q),
        tiles_(micro_, in.kv),
        q_rows_(static_cast<std::size_t>(heads_)) {}

  /// Sums over all heads, in their order, into to[0, end - begin).
  void run(std::int64_t t, std::int64_t begin, std::int64_t end, float* to) {
    const std::int64_t count = end - begin;
    keys_.assign_range(begin, end);
    tiles_.start(keys_);
    queries_.rows(t, q_.floats(heads_ * queries_.width()), q_rows_.data());
    const std::int64_t group = std::clamp<std::int64_t>(most_logits / std::max<std::int64_t>(count, 1), 4, heads_ + 4);
    for (std::int64_t h = 0; h < heads_; h += group) add_heads(h, std::min(group, heads_ - h), count, to);
  }

 private:
  void add_heads(std::int64_t first_head, std::int64_t heads, std::int64_t count, float* to) {
    float* p = logits_.floats(heads * count);
    tiles_.walk([&](std::int64_t first, std::int64_t keys, const float* const* rows) {
      micro_.dots(q_rows_.data() + first_head, heads, rows, keys, queries_.width(), p + first, count);
    });
    for (std::int64_t h = 0; h < heads; ++h, p += count) {
      softmax_row(p, count, in_.scale, in_.sink.valid() ? in_.sink.data_as<const float>() + first_head + h : nullptr);
      for (std::int64_t i = 0; i < count; ++i) to[i] += p[i];
    }
  }

  const Micro& micro_;
  const AttentionInputs& in_;
  std::int64_t heads_;
  RowReader queries_;
  RowTiles tiles_;
  RowKeys keys_;
  Scratch q_, logits_;
  std::vector<const float*> q_rows_;
};

}  // namespace

void dense_head_sums(const Context& context, RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                     const Tensor& head_sums) {
  context.pool.run(rows.size(), [&](TaskSource& tasks) {
    DenseWorker worker(context, in);
    for (std::int64_t r = 0; tasks.next(r);) {
      float* to = entry<float>(head_sums, r);
      std::fill_n(to, head_sums.size(1), 0.0F);
      const auto t = static_cast<std::size_t>(rows.begin + r);
      if (bounds.key_begin[t] < bounds.key_end[t]) {
        worker.run(rows.begin + r, bounds.key_begin[t], bounds.key_end[t], to);
      }
    }
  });
}

}  // namespace tandem::detail::cpu
