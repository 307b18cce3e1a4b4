// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/kernel_set.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "device/cuda/check.hpp"
#include "device/impl.hpp"
#include "device/temporaries.hpp"
#include "kernels/cuda/generic/kernel_set.hpp"
#include "kernels/cuda/sm90/indexer_launch.hpp"
#include "kernels/cuda/sm90/indexer_loss_launch.hpp"
#include "kernels/cuda/sm90/plain_lists.hpp"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"
#include "kernels/validate.hpp"

namespace tandem::detail::cuda::sm90 {
namespace {

namespace launchers = detail::sm90;
using generic::GenericKernels;

/// Raised by one when any result of these kernels changes by a bit.
constexpr std::uint32_t kernels_version = 2;

[[noreturn]] void reject(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

bool dense(const Tensor& t) {
  std::int64_t stride = 1;
  for (int dim = t.dims() - 1; dim >= 0; --dim) {
    if (t.size(dim) > 1 && t.stride(dim) != stride) return false;
    stride *= t.size(dim);
  }
  return true;
}

bool on_granule(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0; }

void expect_dense(const char* name, const Tensor& t) {
  if (t.elements() == 0 || dense(t)) return;
  reject(fmt::format("{}: kernel set cuda.sm90 needs it dense in memory, got {}", name, t.describe()));
}

/// Enqueues the copy of a tensor of up to three dimensions into dense memory.
void pack(void* to, const Tensor& t, const NativeStream& on) {
  const std::size_t width = size_of(t.dtype()) * static_cast<std::size_t>(t.size(t.dims() - 1));
  const auto copy = [&](std::size_t at, const Tensor& from, std::size_t to_pitch, std::int64_t pitch,
                        std::int64_t rows) {
    check(cudaMemcpy2DAsync(static_cast<std::byte*>(to) + at, to_pitch, from.data(),
                            static_cast<std::size_t>(pitch) * size_of(t.dtype()), width, static_cast<std::size_t>(rows),
                            cudaMemcpyDeviceToDevice, on.handle),
          "cudaMemcpy2DAsync", on.context.ordinal);
  };
  if (t.dims() < 3) return copy(0, t, width, t.dims() == 1 ? t.size(0) : t.stride(0), t.dims() == 1 ? 1 : t.size(0));
  const std::int64_t inner = t.size(1);
  const std::size_t row = width * static_cast<std::size_t>(inner);
  for (std::int64_t i = 0; i < inner; ++i) {
    const Tensor column = Tensor::from_raw(
        static_cast<std::byte*>(t.data()) + size_of(t.dtype()) * static_cast<std::size_t>(i * t.stride(1)), t.dtype(),
        {t.size(0), t.size(2)}, {t.stride(0), 1});
    copy(static_cast<std::size_t>(i) * width, column, row, t.stride(0), t.size(0));
  }
}

bool takes_topk(std::int64_t topk) { return topk % 64 == 0 && topk <= generic::most_topk; }

bool scores(const IndexerInputs& in) {
  const std::int64_t heads = in.index_q.size(1);
  const bool known = heads == 8 || heads == 16 || heads == 32 || heads == 64;
  return known && in.index_q.dtype() != DType::f32;
}

bool selects(const IndexerInputs& in) { return scores(in) && takes_topk(in.topk); }

bool aligned(const Tensor& t) {
  const auto granule = static_cast<std::int64_t>(16 / size_of(t.dtype()));
  for (int dim = 0; dim + 1 < t.dims(); ++dim) {
    if (t.size(dim) > 1 && t.stride(dim) % granule != 0) return false;
  }
  return on_granule(t);
}

bool attends(const AttentionInputs& in, const AttentionOutputs& out) {
  return in.q.dtype() == DType::bf16 && takes_topk(in.indices.size(1)) && in.scale >= 0 && dense(in.indices) &&
         aligned(in.indices) && aligned(in.q) && aligned(in.kv) && aligned(out.out) && dense(out.lse);
}

bool differentiates(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss) {
  const auto dense_if_any = [](const Tensor& t) { return !t.valid() || (dense(t) && on_granule(t)); };
  return support.sparse() && scores(in) && support.indices.size(1) > 0 && takes_topk(support.indices.size(1)) &&
         dense(support.indices) && dense(support.length) && dense_if_any(loss.d_index_q) &&
         dense_if_any(loss.d_index_w) && dense_if_any(loss.d_index_k);
}

launchers::SparseForwardArgs forward_args(const AttentionInputs& in, const AttentionOutputs& out) {
  launchers::SparseForwardArgs args;
  args.heads = static_cast<std::int32_t>(in.q.size(1));
  args.dim = static_cast<std::int32_t>(in.q.size(2));
  args.topk = static_cast<std::int32_t>(in.indices.size(1));
  args.scale = in.scale;
  args.queries = in.q.size(0);
  args.keys = in.kv.size(0);
  args.q = in.q.data();
  args.q_row_stride = in.q.stride(0);
  args.q_head_stride = in.q.stride(1);
  args.kv = in.kv.data();
  args.kv_row_stride = in.kv.stride(0);
  args.indices = in.indices.data_as<const std::int32_t>();
  args.sink = in.sink.data_as<const float>();
  args.out = out.out.data();
  args.out_row_stride = out.out.stride(0);
  args.out_head_stride = out.out.stride(1);
  args.lse = out.lse.data_as<float>();
  return args;
}

class Sm90Kernels final : public GenericKernels {
 public:
  explicit Sm90Kernels(const Device& device) : GenericKernels(device) {
    const DeviceGuard guard(context());
    check(launchers::load_indexer_kernels(), "loading the indexer", context().ordinal);
    check(launchers::load_sparse_forward_kernels(), "loading the sparse forward", context().ordinal);
    check(launchers::load_indexer_loss_kernels(), "loading the indexer loss", context().ordinal);
    check(launchers::load_plain_lists_kernel(), "loading the check of lists", context().ordinal);
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context().ordinal), "cudaDeviceGetAttribute",
          context().ordinal);
    multiprocessors_ = count;
  }

  std::string name() const override { return "cuda.sm90"; }
  std::uint32_t numerics_version() const override {
    return (kernels_version << 16) | GenericKernels::numerics_version();
  }
  std::uint64_t scratch_bytes() const override {
    const std::lock_guard lock(mutex_);
    return scratch_.bytes();
  }

  ConcurrentRows concurrent_rows(std::int64_t heads, std::int64_t index_heads) const override {
    // A multiprocessor has a query tile of the indexer, or 64 heads of a row.
    const std::int64_t blocks = std::clamp<std::int64_t>((heads + 63) / 64, 1, multiprocessors_);
    const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(index_heads)));
    return {multiprocessors_ * (256 / std::clamp<std::int64_t>(rounded, 8, 64)), multiprocessors_ / blocks};
  }

  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override;
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override;
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override;
  void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                    const Stream& stream) override;

 private:
  void run_indexer(launchers::IndexerArgs args, const Tensor& bounds, const TopkLists& out, const Stream& stream);
  /// The tensor's memory if it is dense and aligned to 16 bytes, else that of a copy.
  const void* packed(const char* name, const Tensor& t, const Stream& stream) {
    if (!t.valid() || t.elements() == 0 || (dense(t) && on_granule(t))) return t.data();
    const Tensor copy = scratch(name, stream, t.dtype(), t.elements());
    pack(copy.data(), t, native(stream));
    return copy.data();
  }
  Tensor scratch(const char* name, const Stream& stream, DType dtype, std::int64_t elements) {
    const std::lock_guard lock(mutex_);
    return scratch_.take(name, stream, dtype, {elements});
  }

  std::int64_t multiprocessors_ = 1;
  mutable std::mutex mutex_;
  Temporaries scratch_;
};

void Sm90Kernels::indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                               const TopkLists& out, const Stream& stream) {
  throw_if_failed();
  validate_indexer_topk(step, in, state, out);
  if (!selects(in)) return GenericKernels::indexer_topk(step, in, state, out, stream);
  generic::expect_table("bounds", in.bounds, in.index_q.size(0), 2);
  generic::expect_table("step_rows", in.step_rows, step.row_count(), 1);
  generic::expect_table("step_keys", in.step_keys, std::ssize(step.keys), 2);
  const DeviceGuard guard(context());
  launchers::IndexerArgs args;
  args.dtype = in.index_q.dtype() == DType::bf16 ? launchers::IndexerDtype::bf16 : launchers::IndexerDtype::e4m3;
  args.heads = static_cast<std::int32_t>(in.index_q.size(1));
  args.topk = static_cast<std::int32_t>(in.topk);
  args.relu = in.relu;
  args.queries = in.index_q.size(0);
  args.keys = in.index_k.size(0);
  args.q = packed("index_q", in.index_q, stream);
  args.w = static_cast<const float*>(packed("index_w", in.index_w, stream));
  args.k = packed("index_k", in.index_k, stream);
  args.k_scale = static_cast<const float*>(packed("index_k_scale", in.index_k_scale, stream));
  args.rows = in.step_rows.data_as<const std::int32_t>();
  args.row_count = static_cast<std::int32_t>(step.row_count());
  args.key_ranges = in.step_keys.data_as<const std::int32_t>();
  args.key_range_count = static_cast<std::int32_t>(step.keys.size());
  args.first = step.first;
  args.last = step.last;
  if (!step.first || !step.last) {
    for (const Tensor* t : {&state.scores, &state.indices, &state.length}) expect_dense("state", *t);
    args.state_scores = state.scores.data_as<float>();
    args.state_indices = state.indices.data_as<std::int32_t>();
    args.state_length = state.length.data_as<std::int32_t>();
  }
  run_indexer(args, in.bounds, out, stream);
}

void Sm90Kernels::select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) {
  throw_if_failed();
  validate_select_topk(in, out);
  if (!takes_topk(in.topk)) return GenericKernels::select_topk(in, out, stream);
  generic::expect_table("bounds", in.bounds, in.scores.size(0), 2);
  expect_dense("scores", in.scores);
  const DeviceGuard guard(context());
  launchers::IndexerArgs args;
  args.dtype = launchers::IndexerDtype::scores;
  args.heads = 64;
  args.topk = static_cast<std::int32_t>(in.topk);
  args.queries = in.scores.size(0);
  args.keys = in.scores.size(1);
  args.scores = in.scores.data_as<const float>();
  args.row_count = static_cast<std::int32_t>(in.scores.size(0));
  run_indexer(args, in.bounds, out, stream);
}

/// Adds bounds, lists and scratch, and launches.
void Sm90Kernels::run_indexer(launchers::IndexerArgs args, const Tensor& bounds, const TopkLists& out,
                              const Stream& stream) {
  args.key_begin = bounds.data_as<const std::int32_t>();
  args.key_end = args.key_begin + 1;
  args.bounds_stride = 2;
  if (args.last) {
    expect_dense("indices", out.indices);
    expect_dense("length", out.length);
    args.indices = out.indices.data_as<std::int32_t>();
    args.length = out.length.data_as<std::int32_t>();
  }
  args.nan_count = out.nan_count.data_as<std::int64_t>();
  const std::size_t bytes = launchers::indexer_scratch_bytes(args);
  const Tensor memory = scratch("indexer", stream, DType::u8, static_cast<std::int64_t>(bytes));
  args.scratch = memory.data();
  args.scratch_bytes = bytes;
  check(launchers::launch_indexer(args, native(stream).handle), "the indexer", context().ordinal);
}

void Sm90Kernels::sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) {
  throw_if_failed();
  validate_sparse_mla_forward(in, out);
  if (!attends(in, out)) return GenericKernels::sparse_mla_forward(in, out, stream);
  const NativeStream on = native(stream);
  const DeviceGuard guard(context());
  const std::int64_t rows = in.q.size(0);
  const Tensor lists = scratch("lists", stream, DType::i32, 2 * rows);
  auto* const plain_length = lists.data_as<std::int32_t>();
  std::int32_t* const other = plain_length + rows;
  const auto topk = static_cast<std::int32_t>(in.indices.size(1));
  check(launchers::launch_plain_lists({rows, in.kv.size(0), topk, in.indices.data_as<const std::int32_t>(),
                                       in.length.data_as<const std::int32_t>(), plain_length, other},
                                      on.handle),
        "the check of lists", context().ordinal);
  launchers::SparseForwardArgs args = forward_args(in, out);
  args.length = plain_length;
  check(launchers::launch_sparse_forward(args, on.handle), "the sparse forward", context().ordinal);
  generic::sparse_mla_forward(on, in, out, fault(), other);
  if (out.head_sums.valid()) generic::sparse_head_sums(on, in, out, fault());
}

void Sm90Kernels::indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                               const Stream& stream) {
  throw_if_failed();
  validate_indexer_loss(in, support, loss);
  if (!differentiates(in, support, loss)) return GenericKernels::indexer_loss(in, support, loss, stream);
  if (loss.rows.empty()) return;
  const NativeStream on = native(stream);
  const DeviceGuard guard(context());
  const std::int64_t rows = in.index_q.size(0), first = loss.rows.begin;
  const std::int64_t topk = support.indices.size(1);
  const Tensor lists = scratch("lists", stream, DType::i32, 2 * rows);
  auto* const plain_length = lists.data_as<std::int32_t>();
  std::int32_t* const other = plain_length + rows;
  const auto* const indices = support.indices.data_as<const std::int32_t>();
  check(launchers::launch_plain_lists(
            {loss.rows.size(), in.index_k.size(0), static_cast<std::int32_t>(topk), indices + first * topk,
             support.length.data_as<const std::int32_t>() + first, plain_length + first, other + first},
            on.handle),
        "the check of lists", context().ordinal);
  launchers::IndexerLossArgs args;
  args.e4m3 = in.index_q.dtype() == DType::f8e4m3;
  args.heads = static_cast<std::int32_t>(in.index_q.size(1));
  args.topk = static_cast<std::int32_t>(topk);
  args.relu = in.relu;
  args.keys = in.index_k.size(0);
  args.row_begin = first;
  args.row_end = loss.rows.end;
  args.q = packed("index_q", in.index_q, stream);
  args.w = static_cast<const float*>(packed("index_w", in.index_w, stream));
  args.k = packed("index_k", in.index_k, stream);
  args.k_scale = static_cast<const float*>(packed("index_k_scale", in.index_k_scale, stream));
  args.indices = indices;
  args.length = plain_length;
  args.head_sums = loss.head_sums.data_as<const float>();
  args.head_sums_stride = loss.head_sums.stride(0);
  args.loss_scale = loss.loss_scale;
  args.upstream = loss.upstream;
  args.loss = loss.loss.data_as<double>();
  args.d_index_q = loss.d_index_q.data();
  args.d_index_w = loss.d_index_w.data_as<float>();
  args.d_index_k = loss.d_index_k.data_as<float>();
  check(launchers::launch_indexer_loss(args, on.handle), "the indexer loss", context().ordinal);
  generic::indexer_loss(on, in, support, loss, fault(), other);
}

}  // namespace

std::string why_not(const Device& device) {
  const int ordinal = device.impl().cuda_ordinal();
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "cudaDeviceGetAttribute", ordinal);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "cudaDeviceGetAttribute", ordinal);
  if (major == 9 && minor == 0) return "";
  return fmt::format("it is for compute capability 9.0, this GPU has {}.{}", major, minor);
}

std::shared_ptr<KernelSet> make_kernels(const Device& device) { return std::make_shared<Sm90Kernels>(device); }

}  // namespace tandem::detail::cuda::sm90
