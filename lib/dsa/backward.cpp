// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "dsa/attention_impl.hpp"

namespace tandem {

Work DsaAttention::Impl::gather_again(DsaContext::Data& context, const DsaInputs& in, const Stream& stream) {
  std::vector<GatherField> fields{{"kv", in.kv, {}}};
  if (has_loss() && scaled_keys()) fields.push_back({"index_k_scale", in.index_k_scale, {}});
  if (has_loss()) fields.push_back({"index_k", in.index_k, {}});
  return comm->gather(context.plan, fields, stream);
}

DsaAttention::Backward DsaAttention::Impl::backward(DsaContext::Data& context, const DsaInputs& in, const Tensor& dout,
                                                    double dloss, const Stream& stream) {
  const Plan& plan = context.plan;
  const std::int64_t s = plan.rows();
  const std::int64_t n = plan.landed_rows();
  detail::KeepAlive keep(stream, plan);
  keep.add(std::make_shared<DsaInputs>(in));

  Tensor kv = context.kv;
  detail::IndexKeys keys{context.index_k, context.index_k_scale};
  if (!config.keep_landed) {
    const Work again = context.prefetched.valid() ? context.prefetched : gather_again(context, in, stream);
    again.wait(stream, "kv");
    kv = again.landed("kv");
    if (has_loss()) {
      for (const std::string& field : index_fields()) again.wait(stream, field);
      keys = index_keys(again);
    }
  }

  DsaGradients g;
  g.dq = allocate(stream, config.dtype, {s, config.heads, config.dim});
  detail::zero_silent_rows(stream, plan, {g.dq});
  g.dkv = allocate(stream, DType::f32, {s, config.dim});
  const Tensor dkv = temporaries.take("dkv", stream, DType::f32, {n, config.dim});
  detail::zero_on(stream, dkv);
  if (in.sink.valid()) {
    g.dsink = allocate(stream, DType::f32, {config.heads});
    detail::zero_on(stream, g.dsink);
  }
  std::vector<ReduceField> fields{{"dkv", dkv, g.dkv}};
  Tensor head_sums = context.head_sums;
  if (has_sparse_loss_in(LossPass::backward)) {
    head_sums = temporaries.take("head_sums", stream, DType::f32, {s, config.topk});
    detail::zero_silent_rows(stream, plan, {head_sums});
  }
  IndexerLoss loss;
  if (has_loss()) {
    if (config.loss_pass == LossPass::backward) g.loss = loss.loss = allocate(stream, DType::f64, {s});
    g.d_index_q = loss.d_index_q = allocate(stream, index_gradient_dtype(), {s, config.index_heads, index_dim});
    g.d_index_w = loss.d_index_w = allocate(stream, DType::f32, {s, config.index_heads});
    g.d_index_k = allocate(stream, DType::f32, {s, index_dim});
    loss.d_index_k = temporaries.take("d_index_k", stream, DType::f32, {n, index_dim});
    loss.loss_scale = loss_scale(plan);
    loss.upstream = dloss;
    detail::zero_on(stream, loss.d_index_k);
    fields.push_back({"d_index_k", loss.d_index_k, g.d_index_k});
  }
  Reduction reduction = comm->reduce(plan, fields, stream);

  const AttentionInputs attention = attention_inputs(in, kv, context.indices, context.length);
  AttentionGradients grads{dout, context.out, context.lse, g.dq, dkv, g.dsink};
  for (std::size_t b = 0; b < plan.query_blocks().size(); ++b) {
    const RowRange block = plan.query_blocks()[b];
    if (has_sparse_loss_in(LossPass::backward)) grads.head_sums = head_sums.rows(block.begin, block.size());
    compute(stream, fmt::format("compute/backward/{}", b),
            [&] { kernels->sparse_mla_backward(block, attention, grads, stream); });
    for (const ChunkId chunk : plan.final_after(b)) reduction.submit("dkv", chunk, stream);
  }
  if (has_loss()) {
    if (config.target_hook && has_sparse_loss_in(LossPass::backward)) config.target_hook(head_sums, stream);
    run_loss(context, in, {kv, keys, head_sums}, loss, stream, [&](std::size_t b) {
      for (const ChunkId chunk : plan.final_after(b)) reduction.submit("d_index_k", chunk, stream);
    });
  }
  const Work work = reduction.finish(stream);
  // The next backward on this stream adds into the same accumulators, which must have been read by then.
  if (on_gpu()) work.wait(stream);
  return {std::move(g), work};
}

}  // namespace tandem
