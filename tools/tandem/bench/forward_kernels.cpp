// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/forward_kernels.hpp"

#include <chrono>

#include "dsa/attention_impl.hpp"
#include "dsa/cuda/lists.hpp"
#include "tandem/bench/kernel_work.hpp"

namespace tandem::cli {

ForwardKernels::ForwardKernels(const ComputeJob& job, const Plan& plan, std::shared_ptr<KernelSet> kernels,
                               const DsaInputs& inputs, const RowFiller& filler)
    : job_(job),
      plan_(plan),
      kernels_(std::move(kernels)),
      inputs_(inputs),
      rows_(rows_in_one_step(filler, plan)),
      lists_(make_lists(filler, plan.rows(), job.shape.topk)),
      state_(make_state(filler.device(), rows_, job.shape.topk)) {
  const Device& device = filler.device();
  global_ = Tensor::allocate(device, DType::i32, {plan.rows(), job.shape.topk});
  out_.out = Tensor::allocate(device, job.dtype, {plan.rows(), job.shape.heads, value_dim});
  out_.lse = Tensor::allocate(device, DType::f32, {plan.rows(), job.shape.heads});
  if (device.kind() == DeviceKind::cuda)
    tables_ = detail::make_plan_tables(plan, device, Deadline::after(std::chrono::minutes(1)));
}

IndexerInputs ForwardKernels::indexer_inputs(const LandedKeys& landed) const {
  IndexerInputs in{inputs_.index_q, inputs_.index_w, landed.index_k, rows_.key_begin, rows_.key_end, job_.shape.topk};
  in.index_k_scale = landed.index_k_scale;
  in.bounds = rows_.bounds;
  return in;
}

void ForwardKernels::enqueue(const LandedKeys& landed, const Stream& stream) {
  detail::zero_on(stream, lists_.nan_count);
  enqueue_selection(*kernels_, rows_, indexer_inputs(landed), state_, lists_, stream);
  kernels_->sparse_mla_forward(
      {inputs_.q, landed.kv, lists_.indices, lists_.length, {}, attention_scale(job_), /*plain_lists=*/true}, out_,
      stream);
  if (stream.device().kind() == DeviceKind::cuda) {
    detail::cuda::to_global_lists(stream, tables_.shift, lists_.indices, lists_.length, global_);
  } else {
    stream.run([plan = plan_, lists = lists_, global = global_] {
      detail::to_global_lists(plan, lists.indices, lists.length, global);
    });
  }
}

void ForwardKernels::enqueue_loss(const LandedKeys& landed, const Tensor& head_sums, IndexerLoss loss,
                                  const Stream& stream) const {
  const std::int64_t query_rows = plan_.layout().query_rows();
  loss.loss_scale = query_rows > 0 ? 1.0 / static_cast<double>(query_rows) : 0.0;
  for (const RowRange& block : plan_.query_blocks()) {
    loss.rows = block;
    loss.head_sums = head_sums.rows(block.begin, block.size());
    kernels_->indexer_loss(indexer_inputs(landed), {lists_.indices, lists_.length, /*plain_lists=*/true}, loss, stream);
  }
}

void ForwardKernels::poison(const Stream& stream, BenchData& data) const {
  for (const Tensor* t : {&lists_.indices, &lists_.length, &global_, &out_.out, &out_.lse})
    poison_tensor(stream, data, *t);
}

}  // namespace tandem::cli
