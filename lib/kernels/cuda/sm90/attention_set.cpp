// SPDX-License-Identifier: Apache-2.0
// The attention of cuda.sm90.
#include "device/cuda/check.hpp"
#include "kernels/cuda/sm90/sm90_kernels.hpp"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"
#include "kernels/validate.hpp"

namespace tandem::detail::cuda::sm90 {
namespace {

/// What the workspace of a backward may take; a deterministic one writes the terms of dkv there as well.
constexpr std::size_t most_workspace = 1'000'000'000, most_deterministic_workspace = 3'000'000'000;

bool takes(const AttentionInputs& in) {
  return in.q.dtype() == DType::bf16 && takes_topk(in.indices.size(1)) && dense(in.indices) && aligned(in.indices) &&
         aligned(in.q) && aligned(in.kv);
}

bool attends(const AttentionInputs& in, const AttentionOutputs& out) {
  return takes(in) && in.scale >= 0 && aligned(out.out) && dense(out.lse);
}

bool differentiates(const AttentionInputs& in, const AttentionGradients& grads) {
  return takes(in) && in.q.size(1) <= 128 && in.indices.size(1) > 0 && aligned(grads.dout) && aligned(grads.out) &&
         dense(grads.lse) && aligned(grads.dq) && aligned(grads.dkv) &&
         (!grads.head_sums.valid() || dense(grads.head_sums));
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

launchers::SparseBackwardArgs backward_args(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads) {
  launchers::SparseBackwardArgs args;
  args.heads = static_cast<std::int32_t>(in.q.size(1));
  args.dim = static_cast<std::int32_t>(in.q.size(2));
  args.topk = static_cast<std::int32_t>(in.indices.size(1));
  args.scale = in.scale;
  args.queries = in.q.size(0);
  args.keys = in.kv.size(0);
  args.row_begin = rows.begin;
  args.row_end = rows.end;
  args.q = in.q.data();
  args.q_row_stride = in.q.stride(0);
  args.q_head_stride = in.q.stride(1);
  args.kv = in.kv.data();
  args.kv_row_stride = in.kv.stride(0);
  args.indices = in.indices.data_as<const std::int32_t>();
  args.sink = in.sink.data_as<const float>();
  args.dout = grads.dout.data();
  args.dout_row_stride = grads.dout.stride(0);
  args.dout_head_stride = grads.dout.stride(1);
  args.out = grads.out.data();
  args.out_row_stride = grads.out.stride(0);
  args.out_head_stride = grads.out.stride(1);
  args.lse = grads.lse.data_as<const float>();
  args.dq = grads.dq.data();
  args.dq_row_stride = grads.dq.stride(0);
  args.dq_head_stride = grads.dq.stride(1);
  args.dkv = grads.dkv.data_as<float>();
  args.dkv_row_stride = grads.dkv.stride(0);
  args.dsink = grads.dsink.data_as<float>();
  args.head_sums = grads.head_sums.data_as<float>();
  return args;
}

}  // namespace

void Sm90Kernels::sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) {
  throw_if_failed();
  validate_sparse_mla_forward(in, out);
  if (!attends(in, out)) return GenericKernels::sparse_mla_forward(in, out, stream);
  const NativeStream on = native(stream);
  const DeviceGuard guard(context());
  const RowRange rows{0, in.q.size(0)};
  const SortedOut lists = sort_out(rows, in.kv.size(0), in.indices, in.length, in.plain_lists, stream);
  launchers::SparseForwardArgs args = forward_args(in, out);
  args.length = lists.plain_length;
  check(launchers::launch_sparse_forward(args, on.handle), "the sparse forward", context().ordinal);
  if (lists.other) generic::sparse_mla_forward(on, in, out, fault(), &*lists.other);
  if (out.head_sums.valid()) generic::sparse_head_sums(on, rows, in, out.lse, out.head_sums, fault());
}

void Sm90Kernels::sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                                      const Stream& stream) {
  throw_if_failed();
  validate_sparse_mla_backward(rows, in, grads);
  if (!differentiates(in, grads)) return GenericKernels::sparse_mla_backward(rows, in, grads, stream);
  if (rows.empty()) return;
  const NativeStream on = native(stream);
  const DeviceGuard guard(context());
  const SortedOut lists = sort_out(rows, in.kv.size(0), in.indices, in.length, in.plain_lists, stream);
  launchers::SparseBackwardArgs args = backward_args(rows, in, grads);
  args.length = lists.plain_length;
  args.deterministic = deterministic();
  give_workspace(args, stream);
  check(launchers::launch_sparse_backward(args, on.handle), "the sparse backward", context().ordinal);
  if (!lists.other) return;
  generic::sparse_mla_backward(on, rows, in, grads, fault(), &*lists.other, deterministic());
  if (!grads.head_sums.valid()) return;
  generic::sparse_head_sums(on, rows, in, grads.lse, grads.head_sums, fault(), &*lists.other);
}

void Sm90Kernels::give_workspace(launchers::SparseBackwardArgs& args, const Stream& stream) {
  std::size_t bytes = launchers::sparse_backward_workspace_bytes(args);
  const std::size_t most = args.deterministic ? most_deterministic_workspace : most_workspace;
  if (bytes > most) {
    const std::size_t row = launchers::sparse_backward_workspace_bytes(args, 1);
    bytes = row * std::max<std::size_t>(1, most / row);
  }
  const Tensor memory = scratch("backward", stream, DType::u8, static_cast<std::int64_t>(bytes));
  args.workspace = memory.data();
  args.workspace_bytes = bytes;
}

}  // namespace tandem::detail::cuda::sm90
