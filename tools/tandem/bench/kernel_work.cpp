// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/kernel_work.hpp"

#include <chrono>
#include <cmath>

#include "dsa/attention_impl.hpp"
#include "tandem/bench/backward_check.hpp"
#include "tandem/bench/kernel_inputs.hpp"

namespace tandem::cli {
namespace {

double bytes_of(const Tensor& t) {
  return t.valid() ? static_cast<double>(t.elements()) * static_cast<double>(size_of(t.dtype())) : 0;
}

double list_bytes(const ComputeJob& job, const QueryRows& rows) {
  return 4.0 * static_cast<double>(rows.query_count()) * static_cast<double>(job.shape.topk + 1);
}

class Indexer final : public KernelWork {
 public:
  Indexer(const ComputeJob& job, const QueryRows& rows, Pattern pattern, std::shared_ptr<KernelSet> kernels,
          const RowFiller& filler)
      : job_(job),
        rows_(rows),
        pattern_(pattern),
        kernels_(std::move(kernels)),
        filler_(filler),
        in_(make_index_tensors(filler, job, rows, pattern)),
        lists_(make_lists(filler, rows.rows, job.shape.topk)),
        state_(make_state(filler.device(), rows, job.shape.topk)) {}

  void enqueue(const Stream& stream) override {
    IndexerInputs in{in_.q, in_.w, in_.k, rows_.key_begin, rows_.key_end, job_.shape.topk};
    in.index_k_scale = in_.k_scale;
    enqueue_selection(*kernels_, rows_, in, state_, lists_, stream);
  }
  void poison(const Stream& stream, BenchData& data) override {
    poison_tensor(stream, data, lists_.indices);
    poison_tensor(stream, data, lists_.length);
  }
  RowVerdict check() override { return check_selection(filler_, job_, rows_, in_, pattern_ == Pattern::equal, lists_); }
  Cost cost() const override { return indexer_cost(job_, rows_); }
  std::int64_t pairs() const override { return rows_.scored_pairs(job_.shape.topk); }

 private:
  const ComputeJob& job_;
  const QueryRows& rows_;
  const Pattern pattern_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const IndexTensors in_;
  const TopkLists lists_;
  const TopkState state_;
};

class Selection final : public KernelWork {
 public:
  Selection(const ComputeJob& job, const QueryRows& rows, Pattern pattern, std::shared_ptr<KernelSet> kernels,
            const RowFiller& filler)
      : job_(job),
        rows_(rows),
        kernels_(std::move(kernels)),
        filler_(filler),
        scores_(make_scores(filler, job, rows, pattern)),
        lists_(make_lists(filler, rows.rows, job.shape.topk)) {}

  void enqueue(const Stream& stream) override {
    kernels_->select_topk({scores_, rows_.key_begin, rows_.key_end, job_.shape.topk, rows_.bounds}, lists_, stream);
  }
  void poison(const Stream& stream, BenchData& data) override {
    poison_tensor(stream, data, lists_.indices);
    poison_tensor(stream, data, lists_.length);
  }
  RowVerdict check() override { return check_selection(filler_, job_, rows_, scores_, lists_); }
  Cost cost() const override { return {0, false, 4 * static_cast<double>(pairs()) + list_bytes(job_, rows_)}; }
  std::int64_t pairs() const override { return rows_.scored_pairs(job_.shape.topk); }

 private:
  const ComputeJob& job_;
  const QueryRows& rows_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const Tensor scores_;
  const TopkLists lists_;
};

class Attention final : public KernelWork {
 public:
  Attention(const ComputeJob& job, const QueryRows& rows, Pattern pattern, std::shared_ptr<KernelSet> kernels,
            const RowFiller& filler)
      : job_(job),
        rows_(rows),
        kernels_(std::move(kernels)),
        filler_(filler),
        in_(make_attention_tensors(filler, job, rows, pattern)) {
    out_.out = Tensor::allocate(filler.device(), job.dtype, {rows.rows, job.shape.heads, value_dim});
    out_.lse = Tensor::allocate(filler.device(), DType::f32, {rows.rows, job.shape.heads});
  }

  void enqueue(const Stream& stream) override {
    kernels_->sparse_mla_forward(
        {in_.q, in_.kv, in_.indices, in_.length, {}, attention_scale(job_), /*plain_lists=*/true}, out_, stream);
  }
  void poison(const Stream& stream, BenchData& data) override {
    poison_tensor(stream, data, out_.out);
    poison_tensor(stream, data, out_.lse);
  }
  RowVerdict check() override { return check_attention(filler_, job_, rows_, in_, out_); }
  Cost cost() const override { return attention_cost(job_, rows_, in_.touched_keys); }
  std::int64_t pairs() const override { return rows_.selected(job_.shape.topk); }

 private:
  const ComputeJob& job_;
  const QueryRows& rows_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const AttentionTensors in_;
  AttentionOutputs out_;
};

class AttentionBackward final : public KernelWork {
 public:
  AttentionBackward(const ComputeJob& job, const QueryRows& rows, Pattern pattern, std::shared_ptr<KernelSet> kernels,
                    const RowFiller& filler)
      : job_(job),
        rows_(rows),
        kernels_(std::move(kernels)),
        filler_(filler),
        in_(make_attention_tensors(filler, job, rows, pattern)) {
    const Device& device = filler.device();
    const std::int64_t heads = job.shape.heads, dim = job.shape.dim;
    forward_.out = Tensor::allocate(device, job.dtype, {rows.rows, heads, value_dim});
    forward_.lse = Tensor::allocate(device, DType::f32, {rows.rows, heads});
    forward_.dout = make_dout(filler, job, rows);
    dq_ = Tensor::allocate(device, job.dtype, {rows.rows, heads, dim});
    dkv_ = Tensor::allocate(device, DType::f32, {rows.keys, dim});
    const Stream stream = device.create_stream({.name = "bench-forward"});
    kernels_->sparse_mla_forward(inputs(), {forward_.out, forward_.lse, {}}, stream);
    detail::zero_on(stream, dkv_);
    stream.synchronize(Deadline::after(std::chrono::minutes(5)));
  }

  void enqueue(const Stream& stream) override {
    kernels_->sparse_mla_backward({0, rows_.rows}, inputs(), {forward_.dout, forward_.out, forward_.lse, dq_, dkv_, {}},
                                  stream);
  }
  // What is added to has to be 0 for the check.
  void poison(const Stream& stream, BenchData& data) override {
    poison_tensor(stream, data, dq_);
    detail::zero_on(stream, dkv_);
  }
  RowVerdict check() override {
    RowVerdict verdict = check_attention(filler_, job_, rows_, in_, {forward_.out, forward_.lse, {}});
    const RowVerdict backward = check_backward(filler_, job_, rows_, in_, forward_, dq_, dkv_);
    verdict.rows = backward.rows;
    verdict.wrong += backward.wrong;
    return verdict;
  }
  Cost cost() const override { return attention_backward_cost(job_, rows_, in_.touched_keys); }
  std::int64_t pairs() const override { return rows_.selected(job_.shape.topk); }
  double added_bytes() const override { return added_dkv_bytes(job_, rows_); }

 private:
  AttentionInputs inputs() const {
    return {in_.q, in_.kv, in_.indices, in_.length, {}, attention_scale(job_), /*plain_lists=*/true};
  }

  const ComputeJob& job_;
  const QueryRows& rows_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const AttentionTensors in_;
  ForwardResults forward_;
  Tensor dq_, dkv_;
};

}  // namespace

std::unique_ptr<KernelWork> make_kernel_work(const ComputeJob& job, const QueryRows& rows, Pattern pattern,
                                             std::shared_ptr<KernelSet> kernels, const RowFiller& filler) {
  switch (job.operation) {
    case ComputeOperation::topk:
      return std::make_unique<Selection>(job, rows, pattern, std::move(kernels), filler);
    case ComputeOperation::sparse_fwd:
      return std::make_unique<Attention>(job, rows, pattern, std::move(kernels), filler);
    case ComputeOperation::sparse_bwd:
      return std::make_unique<AttentionBackward>(job, rows, pattern, std::move(kernels), filler);
    default:
      return std::make_unique<Indexer>(job, rows, pattern, std::move(kernels), filler);
  }
}

Cost indexer_cost(const ComputeJob& job, const QueryRows& rows) {
  const double width = static_cast<double>(index_dim * static_cast<std::int64_t>(size_of(job.index_dtype)));
  const auto s = static_cast<double>(rows.query_count()), n = static_cast<double>(rows.keys);
  const auto heads = static_cast<double>(job.shape.index_heads);
  Cost cost;
  cost.e4m3 = job.index_dtype == DType::f8e4m3;
  cost.flops = 2 * heads * static_cast<double>(index_dim) * static_cast<double>(rows.scored_pairs(job.shape.topk));
  cost.bytes = s * heads * (width + 4) + n * (width + (cost.e4m3 ? 4 : 0)) + list_bytes(job, rows);
  return cost;
}

Cost attention_cost(const ComputeJob& job, const QueryRows& rows, std::int64_t touched_keys) {
  const auto element = static_cast<double>(size_of(job.dtype));
  const auto s = static_cast<double>(rows.query_count()), heads = static_cast<double>(job.shape.heads);
  const auto columns = static_cast<double>(job.shape.dim + value_dim);
  Cost cost;
  cost.flops = 2 * heads * columns * static_cast<double>(rows.selected(job.shape.topk));
  cost.bytes = s * heads * (columns * element + 4) + static_cast<double>(touched_keys * job.shape.dim) * element +
               list_bytes(job, rows);
  return cost;
}

Cost attention_backward_cost(const ComputeJob& job, const QueryRows& rows, std::int64_t touched_keys) {
  const auto element = static_cast<double>(size_of(job.dtype));
  const auto s = static_cast<double>(rows.query_count()), heads = static_cast<double>(job.shape.heads);
  const auto dim = static_cast<double>(job.shape.dim), value = static_cast<double>(value_dim);
  Cost cost;
  // Scores, dq and the key's part of dkv have d columns, dP and the value's part 512.
  cost.flops = 2 * heads * (3 * dim + 2 * value) * static_cast<double>(rows.selected(job.shape.topk));
  // Keys are read, their gradients read and written.
  cost.bytes = s * heads * (2 * (dim + value) * element + 4) + static_cast<double>(touched_keys) * dim * (element + 8) +
               list_bytes(job, rows);
  return cost;
}

Cost loss_cost(const ComputeJob& job, const QueryRows& rows) {
  const double width = static_cast<double>(index_dim * static_cast<std::int64_t>(size_of(job.index_dtype)));
  const auto s = static_cast<double>(rows.query_count()), n = static_cast<double>(rows.keys);
  const auto heads = static_cast<double>(job.shape.index_heads);
  const auto pairs = static_cast<double>(rows.selected(job.shape.topk));
  Cost cost;
  cost.flops = 2 * heads * static_cast<double>(index_dim) * pairs * 3;
  const double inputs = s * heads * (width + 4) + n * width;
  const double results = s * heads * (width + 4) + 8 * n * static_cast<double>(index_dim);
  cost.bytes = inputs + results + 2 * list_bytes(job, rows);
  return cost;
}

double added_dkv_bytes(const ComputeJob& job, const QueryRows& rows) {
  return 4.0 * static_cast<double>(job.shape.dim) * static_cast<double>(rows.selected(job.shape.topk));
}

float attention_scale(const ComputeJob& job) { return 1.0F / std::sqrt(static_cast<float>(job.shape.dim)); }

TopkLists make_lists(const RowFiller& filler, std::int64_t rows, std::int64_t topk) {
  const Tensor nan_count = Tensor::allocate(filler.device(), DType::i64, {1});
  const Stream stream = filler.device().create_stream({.name = "bench-zero"});
  const std::int64_t zero = 0;
  stream.copy(nan_count.data(), &zero, sizeof(zero));
  stream.synchronize(Deadline::after(std::chrono::minutes(1)));
  return {Tensor::allocate(filler.device(), DType::i32, {rows, topk}),
          Tensor::allocate(filler.device(), DType::i32, {rows}), nan_count};
}

TopkState make_state(const Device& device, const QueryRows& rows, std::int64_t topk) {
  const std::int64_t carried = rows.carried_rows();
  return {Tensor::allocate(device, DType::f32, {carried, topk}), Tensor::allocate(device, DType::i32, {carried, topk}),
          Tensor::allocate(device, DType::i32, {carried})};
}

void enqueue_selection(KernelSet& kernels, const QueryRows& rows, IndexerInputs in, const TopkState& state,
                       const TopkLists& lists, const Stream& stream) {
  in.bounds = rows.bounds;
  for (std::size_t i = 0; i < rows.steps.size(); ++i) {
    in.step_rows = rows.step_rows[i];
    in.step_keys = rows.step_keys[i];
    kernels.indexer_topk(rows.steps[i], in, state, lists, stream);
  }
}

void poison_tensor(const Stream& stream, BenchData& data, const Tensor& tensor) {
  if (tensor.valid()) data.poison(stream, tensor.data(), static_cast<std::uint64_t>(bytes_of(tensor)));
}

}  // namespace tandem::cli
