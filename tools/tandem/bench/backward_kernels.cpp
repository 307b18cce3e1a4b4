// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/backward_kernels.hpp"

#include <vector>

#include "dsa/attention_impl.hpp"
#include "tandem/bench/kernel_work.hpp"

namespace tandem::cli {

BackwardKernels::BackwardKernels(const ComputeJob& job, const Plan& plan, std::shared_ptr<KernelSet> kernels,
                                 const DsaInputs& inputs, const Tensor& dout, const ForwardKernels& forward,
                                 const Device& device)
    : job_(job), plan_(plan), kernels_(std::move(kernels)), inputs_(inputs), dout_(dout), forward_(forward) {
  const std::int64_t s = plan.rows(), n = plan.landed_rows(), dim = job.shape.dim;
  gradients_.dq = Tensor::allocate(device, job.dtype, {s, job.shape.heads, dim});
  gradients_.dkv = Tensor::allocate(device, DType::f32, {s, dim});
  own_dkv_ = Tensor::allocate(device, DType::f32, {n, dim});
  if (!job.has_loss()) return;
  const DType index_gradient = job.index_dtype == DType::f8e4m3 ? DType::f32 : job.index_dtype;
  gradients_.d_index_q = Tensor::allocate(device, index_gradient, {s, job.shape.index_heads, index_dim});
  gradients_.d_index_w = Tensor::allocate(device, DType::f32, {s, job.shape.index_heads});
  gradients_.d_index_k = Tensor::allocate(device, DType::f32, {s, index_dim});
  gradients_.loss = Tensor::allocate(device, DType::f64, {s});
  head_sums_ = Tensor::allocate(device, DType::f32, {s, job.shape.topk});
  own_d_index_k_ = Tensor::allocate(device, DType::f32, {n, index_dim});
}

void BackwardKernels::enqueue(const LandedKeys& landed, const Stream& stream) {
  detail::zero_on(stream, own_dkv_);
  if (job_.has_loss()) detail::zero_on(stream, own_d_index_k_);
  const TopkLists& lists = forward_.lists();
  const AttentionInputs in{inputs_.q,           landed.kv, lists.indices, lists.length, {}, attention_scale(job_),
                           /*plain_lists=*/true};
  const AttentionOutputs& out = forward_.outputs();
  AttentionGradients gradients{dout_, out.out, out.lse, gradients_.dq, own_dkv_, {}};
  for (const RowRange& block : plan_.query_blocks()) {
    if (job_.has_loss()) gradients.head_sums = head_sums_.rows(block.begin, block.size());
    kernels_->sparse_mla_backward(block, in, gradients, stream);
  }
  if (!job_.has_loss()) return;
  IndexerLoss loss;
  loss.loss = gradients_.loss;
  loss.d_index_q = gradients_.d_index_q;
  loss.d_index_w = gradients_.d_index_w;
  loss.d_index_k = own_d_index_k_;
  forward_.enqueue_loss(landed, head_sums_, loss, stream);
}

void BackwardKernels::reduce(Communicator& comm, const Stream& stream) {
  std::vector<ReduceField> fields{{"dkv", own_dkv_, gradients_.dkv}};
  if (job_.has_loss()) fields.push_back({"d_index_k", own_d_index_k_, gradients_.d_index_k});
  Reduction reduction = comm.reduce(plan_, fields, stream);
  for (const ReduceField& field : fields) {
    for (const ChunkTransfer& arrival : plan_.arrivals()) reduction.submit(field.name, arrival.chunk, stream);
  }
  reduce_ = reduction.finish(stream);
  reduce_.wait(stream);
}

void BackwardKernels::poison(const Stream& stream, BenchData& data) const {
  const DsaGradients& g = gradients_;
  for (const Tensor* t :
       {&g.dq, &g.dkv, &g.d_index_q, &g.d_index_w, &g.d_index_k, &g.loss, &own_dkv_, &own_d_index_k_, &head_sums_})
    poison_tensor(stream, data, *t);
}

}  // namespace tandem::cli
