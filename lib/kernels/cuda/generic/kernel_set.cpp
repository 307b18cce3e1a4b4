// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/generic/kernel_set.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>

#include "device/cuda/check.hpp"
#include "kernels/validate.hpp"

namespace tandem::detail::cuda::generic {
namespace {

/// Raised by one when any result of these kernels changes by a bit.
constexpr std::uint32_t kernels_version = 2;
/// The dense head sums keep a number for each head in shared memory.
constexpr std::int64_t most_heads = 4096;

[[noreturn]] void reject(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

}  // namespace

void expect_table(const char* name, const Tensor& t, std::int64_t rows, std::int64_t columns) {
  const bool fits = t.valid() && t.dtype() == DType::i32 && t.size(0) == rows && t.elements() == rows * columns &&
                    t.dims() == (columns == 1 ? 1 : 2) && t.rows_dense() && (rows < 2 || t.stride(0) == columns);
  if (fits) return;
  reject(fmt::format("{}: kernels of a GPU need dense i32 [{}{}] in its memory, got {}", name, rows,
                     columns == 1 ? "" : fmt::format(", {}", columns), t.valid() ? t.describe() : "no tensor"));
}

void expect_topk(std::int64_t topk) {
  if (topk <= most_topk) return;
  throw Error(ErrorCode::unsupported, fmt::format("kernel set cuda.generic: K is {}, at most {}", topk, most_topk));
}

namespace {

void expect_heads(const char* name, std::int64_t heads) {
  if (heads <= most_heads) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("kernel set cuda.generic: {} {}, at most {}", heads, name, most_heads));
}

}  // namespace

GenericKernels::GenericKernels(const Device& device, bool deterministic)
    : context_(native_stream(device.create_stream()).context), deterministic_(deterministic) {
  const DeviceGuard guard(context_);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context_.ordinal), "cudaGetDeviceProperties", context_.ordinal);
  architecture_ = static_cast<std::uint32_t>(10 * properties.major + properties.minor);
  // Never given back: a graph that was captured may outlive this.
  void* word = nullptr;
  check(cudaHostAlloc(&word, sizeof(ListFault), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc",
        context_.ordinal);
  fault_ = new (word) ListFault{0};
}

std::uint32_t GenericKernels::numerics_version() const {
  // Compute capabilities are below 2^10.
  return (kernels_version << 11) | (deterministic_ ? 1U << 10 : 0U) | architecture_;
}

void GenericKernels::throw_if_failed() {
  const ListFault fault = std::atomic_ref(*fault_).exchange(0);
  if (fault == 0) return;
  const std::int64_t row = static_cast<std::int64_t>((fault & ~fault_is_length) >> 32) - 1;
  const auto value = static_cast<std::int32_t>(fault & 0xFFFFFFFFU);
  if ((fault & fault_is_length) != 0) reject(fmt::format("length[{}] is {}, expected 0 to K", row, value));
  reject(fmt::format("indices: row {} has entry {}, which is no landed row", row, value));
}

void GenericKernels::indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state,
                                  const TopkLists& out, const Stream& stream) {
  throw_if_failed();
  validate_indexer_topk(step, in, state, out);
  expect_topk(in.topk);
  expect_table("bounds", in.bounds, in.index_q.size(0), 2);
  expect_table("step_rows", in.step_rows, step.row_count(), 1);
  expect_table("step_keys", in.step_keys, std::ssize(step.keys), 2);
  generic::indexer_topk(native(stream), step, in, state, out);
}

void GenericKernels::select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) {
  throw_if_failed();
  validate_select_topk(in, out);
  expect_topk(in.topk);
  expect_table("bounds", in.bounds, in.scores.size(0), 2);
  generic::select_topk(native(stream), in, out);
}

void GenericKernels::sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) {
  throw_if_failed();
  validate_sparse_mla_forward(in, out);
  expect_topk(in.indices.size(1));
  const NativeStream native_stream = native(stream);
  generic::sparse_mla_forward(native_stream, in, out, fault_);
  if (!out.head_sums.valid()) return;
  generic::sparse_head_sums(native_stream, {0, in.q.size(0)}, in, out.lse, out.head_sums, fault_);
}

void GenericKernels::sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                                         const Stream& stream) {
  throw_if_failed();
  validate_sparse_mla_backward(rows, in, grads);
  expect_topk(in.indices.size(1));
  const NativeStream native_stream = native(stream);
  generic::sparse_mla_backward(native_stream, rows, in, grads, fault_, nullptr, deterministic_);
  if (!grads.head_sums.valid()) return;
  generic::sparse_head_sums(native_stream, rows, in, grads.lse, grads.head_sums, fault_);
}

void GenericKernels::dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in,
                                     const Tensor& head_sums, const Stream& stream) {
  throw_if_failed();
  validate_dense_head_sums(rows, bounds, in, head_sums);
  expect_heads("heads", in.q.size(1));
  expect_table("bounds", bounds.bounds, in.q.size(0), 2);
  generic::dense_head_sums(native(stream), rows, bounds.bounds, in, head_sums);
}

void GenericKernels::indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                                  const Stream& stream) {
  throw_if_failed();
  validate_indexer_loss(in, support, loss);
  if (support.sparse()) {
    expect_topk(support.indices.size(1));
  } else {
    expect_table("bounds", in.bounds, in.index_q.size(0), 2);
  }
  Tensor d_scores;
  if (deterministic_ && loss.d_index_k.valid() && !loss.rows.empty()) {
    const std::int64_t rows = loss.rows.size(), columns = loss.head_sums.size(1);
    d_scores = Tensor::from_raw(scratch("d_scores", stream, DType::f32, rows * columns).data(), DType::f32,
                                {rows, columns}, {columns, 1});
  }
  generic::indexer_loss(native(stream), in, support, loss, fault_, nullptr, d_scores);
}

NativeStream GenericKernels::native(const Stream& stream) const {
  const NativeStream result = native_stream(stream);
  if (result.context.ordinal != context_.ordinal) {
    reject(fmt::format("kernel set cuda.generic of device {}: stream '{}' is of device {}", context_.ordinal,
                       stream.name(), result.context.ordinal));
  }
  return result;
}

}  // namespace tandem::detail::cuda::generic
