// SPDX-License-Identifier: Apache-2.0
// The indexer of cuda.sm90: selection, and the loss with its gradients.
#include "device/cuda/check.hpp"
#include "kernels/cuda/sm90/indexer_loss_launch.hpp"
#include "kernels/cuda/sm90/sm90_kernels.hpp"
#include "kernels/validate.hpp"

namespace tandem::detail::cuda::sm90 {
namespace {

bool scores(const IndexerInputs& in) {
  const std::int64_t heads = in.index_q.size(1);
  const bool known = heads == 8 || heads == 16 || heads == 32 || heads == 64;
  return known && in.index_q.dtype() != DType::f32;
}

bool selects(const IndexerInputs& in) { return scores(in) && takes_topk(in.topk); }

bool differentiates(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss) {
  const auto dense_if_any = [](const Tensor& t) { return !t.valid() || (dense(t) && on_granule(t)); };
  return support.sparse() && scores(in) && support.indices.size(1) > 0 && takes_topk(support.indices.size(1)) &&
         dense(support.indices) && dense(support.length) && dense_if_any(loss.d_index_q) &&
         dense_if_any(loss.d_index_w) && dense_if_any(loss.d_index_k);
}

}  // namespace

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
  if (!takes_topk(in.topk) || !dense(in.scores)) return GenericKernels::select_topk(in, out, stream);
  generic::expect_table("bounds", in.bounds, in.scores.size(0), 2);
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

void Sm90Kernels::indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                               const Stream& stream) {
  throw_if_failed();
  validate_indexer_loss(in, support, loss);
  // These kernels add to d_index_k by atomics. The loss alone goes the same way, so that it has the same bits.
  if (deterministic() || !differentiates(in, support, loss)) {
    return GenericKernels::indexer_loss(in, support, loss, stream);
  }
  if (loss.rows.empty()) return;
  const NativeStream on = native(stream);
  const DeviceGuard guard(context());
  const SortedOut lists =
      sort_out(loss.rows, in.index_k.size(0), support.indices, support.length, support.plain_lists, stream);
  launchers::IndexerLossArgs args;
  args.e4m3 = in.index_q.dtype() == DType::f8e4m3;
  args.heads = static_cast<std::int32_t>(in.index_q.size(1));
  args.topk = static_cast<std::int32_t>(support.indices.size(1));
  args.relu = in.relu;
  args.keys = in.index_k.size(0);
  args.row_begin = loss.rows.begin;
  args.row_end = loss.rows.end;
  args.q = packed("index_q", in.index_q, stream);
  args.w = static_cast<const float*>(packed("index_w", in.index_w, stream));
  args.k = packed("index_k", in.index_k, stream);
  args.k_scale = static_cast<const float*>(packed("index_k_scale", in.index_k_scale, stream));
  args.indices = support.indices.data_as<const std::int32_t>();
  args.length = lists.plain_length;
  args.head_sums = loss.head_sums.data_as<const float>();
  args.head_sums_stride = loss.head_sums.stride(0);
  args.loss_scale = loss.loss_scale;
  args.upstream = loss.upstream;
  args.loss = loss.loss.data_as<double>();
  args.d_index_q = loss.d_index_q.data();
  args.d_index_w = loss.d_index_w.data_as<float>();
  args.d_index_k = loss.d_index_k.data_as<float>();
  check(launchers::launch_indexer_loss(args, on.handle), "the indexer loss", context().ordinal);
  if (lists.other) generic::indexer_loss(on, in, support, loss, fault(), &*lists.other);
}

}  // namespace tandem::detail::cuda::sm90
