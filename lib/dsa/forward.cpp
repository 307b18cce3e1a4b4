// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "dsa/attention_impl.hpp"

namespace tandem {

std::int64_t loss_block_rows(const Plan& plan) {
  std::int64_t most = 0;
  for (const RowRange& block : plan.query_blocks()) most = std::max(most, block.size());
  return most;
}

std::int64_t most_visible_keys(const Plan& plan) {
  std::int64_t most = 1;
  for (std::size_t t = 0; t < plan.key_begin().size(); ++t)
    most = std::max(most, plan.key_end()[t] - plan.key_begin()[t]);
  return most;
}

std::vector<std::string> DsaAttention::Impl::index_fields() const {
  if (scaled_keys()) return {"index_k_scale", "index_k"};
  return {"index_k"};
}

detail::IndexKeys DsaAttention::Impl::index_keys(const Work& gather) const {
  return {gather.landed("index_k"), scaled_keys() ? gather.landed("index_k_scale") : Tensor()};
}

IndexerInputs DsaAttention::Impl::indexer_inputs(const Plan& plan, const DsaInputs& in,
                                                 const detail::IndexKeys& keys) const {
  IndexerInputs indexer{in.index_q, in.index_w, keys.k, plan.key_begin(), plan.key_end(), config.topk, config.relu};
  indexer.index_k_scale = keys.scale;
  if (on_gpu()) indexer.bounds = tables_of(plan).bounds;
  return indexer;
}

AttentionInputs DsaAttention::Impl::attention_inputs(const DsaInputs& in, const Tensor& kv, const Tensor& indices,
                                                     const Tensor& length) const {
  return {in.q, kv, indices, length, in.sink, config.scale, /*plain_lists=*/true};
}

double DsaAttention::Impl::loss_scale(const Plan& plan) const {
  const std::int64_t rows = plan.layout().query_rows();
  return rows > 0 ? 1.0 / static_cast<double>(rows) : 0.0;
}

void DsaAttention::Impl::select(const Plan& plan, const DsaInputs& in, const Work& gather, const TopkLists& lists,
                                const Stream& stream, detail::KeepAlive& keep) {
  std::int64_t carried = 0;
  for (const IndexerStep& step : plan.indexer_steps()) {
    if (!step.last) carried = std::max(carried, step.row_count());
  }
  const TopkState state{temporaries.take("scores", stream, DType::f32, {carried, config.topk}),
                        temporaries.take("indices", stream, DType::i32, {carried, config.topk}),
                        temporaries.take("length", stream, DType::i32, {carried})};
  keep.add(std::make_shared<TopkState>(state));
  IndexerInputs indexer = indexer_inputs(plan, in, index_keys(gather));
  // Rows that keep their state are too few to fill a GPU, which the others' steps do meanwhile.
  std::optional<detail::SideStream::Fork> fork;
  if (on_gpu() && carried > 0) fork.emplace(side, stream);
  std::size_t number = 0;
  for (const IndexerStep& step : plan.indexer_steps()) {
    const Stream& on = fork && !(step.first && step.last) ? fork->stream() : stream;
    // Each wait stands right before the step that needs it: whatever was enqueued so far runs meanwhile.
    for (const ChunkId chunk : step.chunks) {
      for (const std::string& field : index_fields()) gather.wait(on, field, chunk);
    }
    if (on_gpu()) {
      indexer.step_rows = tables_of(plan).steps[number].rows;
      indexer.step_keys = tables_of(plan).steps[number].keys;
    }
    compute(on, fmt::format("compute/indexer/{}", number++),
            [&] { kernels->indexer_topk(step, indexer, state, lists, on); });
  }
  if (fork) fork->join();
}

DsaAttention::Forward DsaAttention::Impl::forward(const Plan& plan, const DsaInputs& in, const Stream& stream) {
  const std::int64_t s = plan.rows();
  const std::int64_t n = plan.landed_rows();
  detail::KeepAlive keep(stream, plan);
  keep.add(std::make_shared<DsaInputs>(in));

  auto context = std::make_shared<DsaContext::Data>(plan);
  context->given_lists = in.indices.valid();
  if (config.keep_landed) {
    context->kv = allocate(stream, config.dtype, {n, config.dim});
    if (has_loss()) context->index_k = allocate(stream, index_dtype(), {n, index_dim});
    if (has_loss() && scaled_keys()) context->index_k_scale = allocate(stream, DType::f32, {n});
  }
  // Rows that stay until backward land where they stay, unless peers cannot write there: then they are copied.
  const bool copy = comm->one_sided();
  std::vector<GatherField> fields;
  const auto add_field = [&](const char* name, const Tensor& source, const Tensor& kept) {
    fields.push_back({name, source, copy ? Tensor() : kept});
  };
  if (!context->given_lists && scaled_keys()) add_field("index_k_scale", in.index_k_scale, context->index_k_scale);
  if (!context->given_lists) add_field("index_k", in.index_k, context->index_k);
  add_field("kv", in.kv, context->kv);
  const Work gather = comm->gather(plan, fields, stream);

  DsaOutputs out;
  out.out = context->out = allocate(stream, config.dtype, {s, config.heads, value_dim});
  out.lse = context->lse = allocate(stream, DType::f32, {s, config.heads});
  out.indices = allocate(stream, DType::i32, {s, config.topk});
  out.length = context->length = allocate(stream, DType::i32, {s});
  out.nan_count = allocate(stream, DType::i64, {1});
  context->indices = allocate(stream, DType::i32, {s, config.topk});
  detail::zero_on(stream, out.nan_count);

  if (context->given_lists) {
    to_landed(plan, in.indices, context->indices, context->length, stream);
  } else {
    select(plan, in, gather, {context->indices, context->length, out.nan_count}, stream, keep);
  }
  gather.wait(stream, "kv");
  const Tensor kv = gather.landed("kv");
  if (has_sparse_loss_in(LossPass::forward)) context->head_sums = allocate(stream, DType::f32, {s, config.topk});
  compute(stream, "compute/attention", [&] {
    kernels->sparse_mla_forward(attention_inputs(in, kv, context->indices, context->length),
                                {out.out, out.lse, context->head_sums}, stream);
  });
  to_global(plan, context->indices, context->length, out.indices, stream);
  if (has_loss_in(LossPass::forward)) {
    out.loss = allocate(stream, DType::f64, {s});
    if (config.target_hook && context->head_sums.valid()) config.target_hook(context->head_sums, stream);
    IndexerLoss loss;
    loss.loss_scale = loss_scale(plan);
    loss.loss = out.loss;
    run_loss(*context, in, {kv, index_keys(gather), context->head_sums}, loss, stream, {});
  }
  if (copy) {
    const auto keep_rows = [&](const Tensor& to, const char* field) {
      if (!to.valid()) return;
      gather.wait(stream, field);
      const Tensor from = gather.landed(field);
      stream.copy(to.data(), from.data(), to.row_bytes() * static_cast<std::size_t>(n));
      keep.add(std::make_shared<std::pair<Tensor, Tensor>>(to, from));
    };
    keep_rows(context->kv, "kv");
    keep_rows(context->index_k, "index_k");
    keep_rows(context->index_k_scale, "index_k_scale");
  }
  return {std::move(out), DsaContext(std::move(context)), gather};
}

void DsaAttention::Impl::run_loss(const DsaContext::Data& context, const DsaInputs& in, const LossInputs& from,
                                  IndexerLoss loss, const Stream& stream,
                                  const std::function<void(std::size_t)>& after) {
  const Plan& plan = context.plan;
  const IndexerInputs indexer = indexer_inputs(plan, in, from.keys);
  const bool dense = config.loss == IndexerLossKind::dense;
  const LossSupport support =
      dense ? LossSupport{} : LossSupport{context.indices, context.length, /*plain_lists=*/true};
  // One tile of rows by keys for all blocks: the stream uses it for one after the other.
  const Tensor tile =
      dense ? temporaries.take("tile", stream, DType::f32, {loss_block_rows(plan), most_visible_keys(plan)}) : Tensor();
  const char* pass = loss.d_index_k.valid() ? "indexer_backward" : "indexer_loss";
  detail::zero_silent_rows(stream, plan, {loss.loss, loss.d_index_q, loss.d_index_w});
  for (std::size_t b = 0; b < plan.query_blocks().size(); ++b) {
    loss.rows = plan.query_blocks()[b];
    compute(stream, fmt::format("compute/{}/{}", pass, b), [&] {
      if (dense) {
        loss.head_sums = tile.rows(0, loss.rows.size());
        kernels->dense_head_sums(loss.rows, indexer, attention_inputs(in, from.kv, context.indices, context.length),
                                 loss.head_sums, stream);
        if (config.target_hook) config.target_hook(loss.head_sums, stream);
      } else {
        loss.head_sums = from.head_sums.rows(loss.rows.begin, loss.rows.size());
      }
      kernels->indexer_loss(indexer, support, loss, stream);
    });
    if (after) after(b);
  }
}

}  // namespace tandem
