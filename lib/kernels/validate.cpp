// SPDX-License-Identifier: Apache-2.0
#include "kernels/validate.hpp"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

namespace tandem::detail {
namespace {

constexpr std::int64_t any = -1;
using Shape = std::initializer_list<std::int64_t>;

[[noreturn]] void reject(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

std::string shape_text(Shape shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", extent == any ? "*" : fmt::format("{}", extent));
  }
  return "[" + text + "]";
}

bool has_shape(const Tensor& t, Shape shape) {
  if (!t.valid() || t.dims() != static_cast<int>(shape.size())) return false;
  int dim = 0;
  for (const std::int64_t extent : shape) {
    if (extent != any && t.size(dim) != extent) return false;
    ++dim;
  }
  return true;
}

[[noreturn]] void reject(std::string_view name, std::string_view dtypes, Shape shape, const Tensor& got) {
  reject(fmt::format("{}: expected {} {}, got {}", name, dtypes, shape_text(shape),
                     got.valid() ? got.describe() : "an empty tensor"));
}

void expect(std::string_view name, const Tensor& t, DType dtype, Shape shape) {
  if (!has_shape(t, shape) || t.dtype() != dtype) reject(name, to_string(dtype), shape, t);
}

void expect_optional(std::string_view name, const Tensor& t, DType dtype, Shape shape) {
  if (t.valid()) expect(name, t, dtype, shape);
}

/// The tensor whose dtype is that of the call.
void expect_data(std::string_view name, const Tensor& t, Shape shape, std::string_view dtypes = "bf16 or f32") {
  if (!has_shape(t, shape) || (t.dtype() != DType::bf16 && t.dtype() != DType::f32)) reject(name, dtypes, shape, t);
}

void expect_landed(std::string_view name, std::int64_t rows) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (rows > most) reject(fmt::format("{}: {} landed rows, expected at most {}", name, rows, most));
}

void expect_range(std::string_view name, RowRange range, std::int64_t rows) {
  if (range.begin < 0 || range.end < range.begin || range.end > rows) {
    reject(fmt::format("{}: [{}, {}) is not within [0, {})", name, range.begin, range.end, rows));
  }
}

void expect_ascending(std::string_view name, std::span<const RowRange> ranges, std::int64_t rows) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::string one = fmt::format("{}[{}]", name, i);
    expect_range(one, ranges[i], rows);
    if (ranges[i].begin < end)
      reject(fmt::format("{}: begins at {}, before the end {} of the one before", one, ranges[i].begin, end));
    end = ranges[i].end;
  }
}

template <class Inputs>
void expect_bounds(const Inputs& in, std::int64_t rows, std::int64_t landed_rows) {
  const auto count = static_cast<std::size_t>(rows);
  if (in.key_begin.size() != count || in.key_end.size() != count) {
    reject(fmt::format("key_begin and key_end: expected {} entries each, got {} and {}", rows, in.key_begin.size(),
                       in.key_end.size()));
  }
  for (std::size_t t = 0; t < count; ++t) {
    if (in.key_begin[t] < 0 || in.key_end[t] < in.key_begin[t] || in.key_end[t] > landed_rows) {
      reject(fmt::format("key_begin and key_end: row {} sees [{}, {}), which is not within the {} landed rows", t,
                         in.key_begin[t], in.key_end[t], landed_rows));
    }
  }
}

void expect_some(std::string_view name, std::int64_t count) {
  if (count < 1) reject(fmt::format("{}: expected at least 1, got {}", name, count));
}

void expect_scale(const IndexerInputs& in) {
  const Tensor& scale = in.index_k_scale;
  if (in.index_k.dtype() != DType::f8e4m3) {
    if (!scale.valid()) return;
    reject(fmt::format("index_k_scale: given, but index_k is {}", to_string(in.index_k.dtype())));
  }
  const std::int64_t rows = in.index_k.size(0);
  if (!has_shape(scale, {rows, 1})) expect("index_k_scale", scale, DType::f32, {rows});
  if (scale.dtype() != DType::f32) reject("index_k_scale", "f32", {rows, 1}, scale);
}

void expect_indexer(const IndexerInputs& in) {
  if (in.index_q.dtype() == DType::f8e4m3) {
    expect("index_q", in.index_q, DType::f8e4m3, {any, any, index_dim});
  } else {
    expect_data("index_q", in.index_q, {any, any, index_dim}, "bf16, f32 or f8e4m3");
  }
  expect_some("index_q heads", in.index_q.size(1));
  expect("index_w", in.index_w, DType::f32, {in.index_q.size(0), in.index_q.size(1)});
  expect("index_k", in.index_k, in.index_q.dtype(), {any, index_dim});
  expect_landed("index_k", in.index_k.size(0));
  expect_scale(in);
}

/// What of the attention's inputs does not depend on lists.
void expect_attention(const AttentionInputs& in) {
  expect_data("q", in.q, {any, any, any});
  const std::int64_t dim = in.q.size(2);
  if (dim != value_dim && dim != value_dim + 64) reject("q", "bf16 or f32", {any, any, value_dim + 64}, in.q);
  expect_some("q heads", in.q.size(1));
  expect("kv", in.kv, in.q.dtype(), {any, dim});
  expect_landed("kv", in.kv.size(0));
  expect_optional("sink", in.sink, DType::f32, {in.q.size(1)});
}

void expect_lists(const Tensor& indices, const Tensor& length, std::int64_t rows) {
  expect("indices", indices, DType::i32, {rows, any});
  expect_some("indices columns (K)", indices.size(1));
  expect("length", length, DType::i32, {rows});
}

}  // namespace

void validate_indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                           const TopkLists& out) {
  expect_some("topk", in.topk);
  expect_indexer(in);
  const std::int64_t rows = in.index_q.size(0);
  expect_bounds(in, rows, in.index_k.size(0));
  expect_ascending("step.rows", step.rows, rows);
  expect_ascending("step.keys", step.keys, in.index_k.size(0));
  if (step.last) {
    expect("indices", out.indices, DType::i32, {rows, in.topk});
    expect("length", out.length, DType::i32, {rows});
  }
  expect("nan_count", out.nan_count, DType::i64, {1});
  if (step.first && step.last) return;
  const std::int64_t carried = step.row_count();
  const std::int64_t held = state.scores.valid() ? state.scores.size(0) : 0;
  if (held < carried) reject("state.scores", "f32", {carried, in.topk}, state.scores);
  expect("state.scores", state.scores, DType::f32, {any, in.topk});
  expect("state.indices", state.indices, DType::i32, {held, in.topk});
  expect("state.length", state.length, DType::i32, {held});
}

void validate_select_topk(const ScoreMatrix& in, const TopkLists& out) {
  expect_some("topk", in.topk);
  expect("scores", in.scores, DType::f32, {any, any});
  const std::int64_t rows = in.scores.size(0);
  const std::int64_t keys = in.scores.size(1);
  expect_landed("scores", keys);
  expect_bounds(in, rows, keys);
  expect("indices", out.indices, DType::i32, {rows, in.topk});
  expect("length", out.length, DType::i32, {rows});
  expect("nan_count", out.nan_count, DType::i64, {1});
}

void validate_sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out) {
  expect_attention(in);
  const std::int64_t rows = in.q.size(0);
  const std::int64_t heads = in.q.size(1);
  expect_lists(in.indices, in.length, rows);
  expect("out", out.out, in.q.dtype(), {rows, heads, value_dim});
  expect("lse", out.lse, DType::f32, {rows, heads});
  expect_optional("head_sums", out.head_sums, DType::f32, {rows, in.indices.size(1)});
}

void validate_sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads) {
  expect_attention(in);
  const std::int64_t s = in.q.size(0);
  const std::int64_t heads = in.q.size(1);
  expect_lists(in.indices, in.length, s);
  expect_range("rows", rows, s);
  expect("dout", grads.dout, in.q.dtype(), {s, heads, value_dim});
  expect("out", grads.out, in.q.dtype(), {s, heads, value_dim});
  expect("lse", grads.lse, DType::f32, {s, heads});
  expect("dq", grads.dq, in.q.dtype(), {s, heads, in.q.size(2)});
  expect("dkv", grads.dkv, DType::f32, {in.kv.size(0), in.q.size(2)});
  expect_optional("dsink", grads.dsink, DType::f32, {heads});
  expect_optional("head_sums", grads.head_sums, DType::f32, {rows.size(), in.indices.size(1)});
  if (grads.dsink.valid() && !in.sink.valid()) reject("dsink: given, but the inputs have no sink");
}

void validate_dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                              const Tensor& head_sums) {
  expect_attention(in);
  expect_range("rows", rows, in.q.size(0));
  expect_bounds(bounds, in.q.size(0), in.kv.size(0));
  expect("head_sums", head_sums, DType::f32, {rows.size(), any});
  for (std::int64_t t = rows.begin; t < rows.end; ++t) {
    const auto i = static_cast<std::size_t>(t);
    const std::int64_t seen = bounds.key_end[i] - bounds.key_begin[i];
    if (seen > head_sums.size(1)) {
      reject(fmt::format("head_sums: row {} sees {} keys, got {}", t, seen, head_sums.describe()));
    }
  }
}

void validate_indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss) {
  expect_indexer(in);
  const std::int64_t s = in.index_q.size(0);
  const std::int64_t heads = in.index_q.size(1);
  expect_range("rows", loss.rows, s);
  std::int64_t most = 0;
  if (support.sparse()) {
    expect_lists(support.indices, support.length, s);
    most = support.indices.size(1);
  } else {
    expect_bounds(in, s, in.index_k.size(0));
    for (std::int64_t t = loss.rows.begin; t < loss.rows.end; ++t) {
      const auto i = static_cast<std::size_t>(t);
      most = std::max(most, in.key_end[i] - in.key_begin[i]);
    }
  }
  expect("head_sums", loss.head_sums, DType::f32, {loss.rows.size(), any});
  if (loss.head_sums.size(1) < most) reject("head_sums", "f32", {loss.rows.size(), most}, loss.head_sums);
  expect_optional("loss", loss.loss, DType::f64, {s});
  const DType gradient = in.index_q.dtype() == DType::f8e4m3 ? DType::f32 : in.index_q.dtype();
  expect_optional("d_index_q", loss.d_index_q, gradient, {s, heads, index_dim});
  expect_optional("d_index_w", loss.d_index_w, DType::f32, {s, heads});
  expect_optional("d_index_k", loss.d_index_k, DType::f32, {in.index_k.size(0), index_dim});
}

}  // namespace tandem::detail
