// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/prepared.hpp"
#include "dsa/attention_impl.hpp"
#include "dsa/cuda/lists.hpp"

namespace tandem {

namespace {

const char* to_string(IndexerLossKind kind) {
  switch (kind) {
    case IndexerLossKind::none:
      return "none";
    case IndexerLossKind::sparse:
      return "sparse";
    case IndexerLossKind::dense:
      return "dense";
  }
  return "?";
}

void check_config(const DsaConfig& c) {
  auto at_least_one = [](const char* name, std::int64_t value) {
    if (value < 1) throw Error(ErrorCode::invalid_argument, fmt::format("{} = {}; at least 1", name, value));
  };
  at_least_one("heads", c.heads);
  at_least_one("index_heads", c.index_heads);
  at_least_one("topk", c.topk);
  if (c.dim != 576 && c.dim != 512)
    throw Error(ErrorCode::invalid_argument, fmt::format("dim = {}; 576 or 512", c.dim));
  if (c.dtype != DType::bf16 && c.dtype != DType::f32) {
    throw Error(ErrorCode::unsupported, fmt::format("dtype {}; bf16 or f32", to_string(c.dtype)));
  }
  if (c.index_dtype && *c.index_dtype != DType::bf16 && *c.index_dtype != DType::f32 &&
      *c.index_dtype != DType::f8e4m3) {
    throw Error(ErrorCode::unsupported, fmt::format("index dtype {}; bf16, f32 or f8e4m3", to_string(*c.index_dtype)));
  }
  if (c.wire != DType::bf16 && c.wire != DType::f32) {
    throw Error(ErrorCode::unsupported, fmt::format("wire dtype {}; f32 or bf16", to_string(c.wire)));
  }
  if (!(std::isfinite(c.scale) && c.scale >= 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("scale = {}", c.scale));
}

}  // namespace

DsaAttention::DsaAttention(Communicator& comm, std::shared_ptr<KernelSet> kernels, const DsaConfig& config)
    : impl_(std::make_unique<Impl>(Impl{.comm = &comm,
                                        .kernels = std::move(kernels),
                                        .config = config,
                                        .results = detail::StreamMemory([device = comm.device()](std::size_t bytes) {
                                          return device.allocate(bytes);
                                        })})) {
  if (!impl_->kernels) throw Error(ErrorCode::invalid_argument, "no kernel set given");
  check_config(config);
  if (config.deterministic && !impl_->kernels->deterministic()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("deterministic: this kernel set {} adds gradients in no fixed order; ask for one that does",
                            impl_->kernels->name()));
  }
  if (impl_->config.scale == 0.0F) impl_->config.scale = 1.0F / std::sqrt(static_cast<float>(config.dim));
}

DsaAttention::~DsaAttention() = default;
DsaAttention::DsaAttention(DsaAttention&&) noexcept = default;

const DsaConfig& DsaAttention::config() const noexcept { return impl_->config; }

PlanOptions DsaAttention::plan_options(PlanOptions options) const {
  const auto next_multiple = [](std::int64_t rows, std::int64_t of) { return (rows + of - 1) / of * of; };
  const ConcurrentRows at_once = impl_->kernels->concurrent_rows(config().heads, config().index_heads);
  options.carry_rows = next_multiple(options.carry_rows, at_once.indexer);
  options.block_rows = next_multiple(options.block_rows, at_once.backward);
  return options;
}

void DsaAttention::prepare(const Plan& plan) { impl_->prepare(plan); }
DsaMemory DsaAttention::memory(const Plan& plan) const { return impl_->memory(plan); }

DsaAttention::Forward DsaAttention::forward(const Plan& plan, const DsaInputs& inputs, const Stream& stream) {
  impl_->check_inputs(plan, inputs);
  return impl_->forward(plan, inputs, stream);
}

DsaAttention::Backward DsaAttention::backward(const DsaContext& context, const DsaInputs& inputs, const Tensor& dout,
                                              double dloss, const Stream& stream) {
  if (!context.valid()) throw Error(ErrorCode::invalid_usage, "this context comes from no forward");
  DsaContext::Data& data = *context.data();
  if (data.used) throw Error(ErrorCode::invalid_usage, "backward has run on this context already");
  impl_->check_inputs(data.plan, inputs);
  detail::check_tensor("dout", dout, impl_->config.dtype, {data.plan.rows(), impl_->config.heads, value_dim});
  data.used = true;
  return impl_->backward(data, inputs, dout, dloss, stream);
}

void DsaAttention::prefetch(const DsaContext& context, const DsaInputs& inputs, const Stream& stream) {
  if (!context.valid()) throw Error(ErrorCode::invalid_usage, "this context comes from no forward");
  DsaContext::Data& data = *context.data();
  if (impl_->config.keep_landed || data.prefetched.valid()) return;
  impl_->check_inputs(data.plan, inputs);
  data.prefetched = impl_->gather_again(data, inputs, stream);
}

void DsaAttention::synchronize(const Stream& stream, Deadline deadline) {
  stream.synchronize(deadline);
  impl_->kernels->throw_if_failed();
}

std::uint64_t DsaContext::bytes() const {
  if (!data_) return 0;
  std::uint64_t sum = 0;
  for (const Tensor* t :
       {&data_->indices, &data_->length, &data_->head_sums, &data_->kv, &data_->index_k, &data_->index_k_scale}) {
    if (t->valid()) sum += static_cast<std::uint64_t>(t->elements()) * size_of(t->dtype());
  }
  return sum;
}

BatchSpec DsaAttention::Impl::batch_spec() const {
  BatchSpec spec;
  // A chunk's keys are of no use without their scales, which are few bytes: they go first.
  if (scaled_keys()) spec.gather.push_back({"index_k_scale", DType::f32, 1, DType::f32});
  spec.gather.push_back({"index_k", index_dtype(), index_dim, DType::f32});
  spec.gather.push_back({"kv", config.dtype, config.dim, DType::f32});
  spec.reduce = {{"dkv", DType::f32, config.dim, config.wire}};
  if (has_loss()) spec.reduce.push_back({"d_index_k", DType::f32, index_dim, config.wire});
  spec.fingerprint = fmt::format(
      "kernels {} {}, heads {}, index heads {}, index dtype {}, top-k {}, scale {}, relu {}, loss {} in pass {}, keep "
      "landed rows {}",
      kernels->name(), kernels->numerics_version(), config.heads, config.index_heads, to_string(index_dtype()),
      config.topk, config.scale, config.relu, to_string(config.loss),
      config.loss_pass == LossPass::forward ? "forward" : "backward", config.keep_landed);
  return spec;
}

Tensor DsaAttention::Impl::allocate(const Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape) {
  const Device& device = comm->device();
  // A graph goes on using what it was captured with.
  if (!on_gpu() || stream.impl().capture() != 0 || device.impl().poisons())
    return Tensor::allocate(device, dtype, shape);
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  return Tensor::view(results.take(stream.impl().id(), bytes), 0, dtype, shape);
}

void DsaAttention::Impl::prepare(const Plan& plan) {
  comm->prepare(plan, batch_spec());
  if (!on_gpu()) return;
  constexpr std::chrono::seconds patience{60};  // with whatever else the GPU does
  tables.insert_or_assign(plan.hash(), detail::make_plan_tables(plan, comm->device(), Deadline::after(patience)));
  const auto carries = [](const IndexerStep& step) { return !step.last; };
  if (!side.valid() && std::any_of(plan.indexer_steps().begin(), plan.indexer_steps().end(), carries)) {
    side = detail::SideStream(comm->device());
  }
}

void DsaAttention::Impl::check_inputs(const Plan& plan, const DsaInputs& in) const {
  const std::int64_t s = plan.rows();
  const DType t = config.dtype;
  detail::check_tensor("q", in.q, t, {s, config.heads, config.dim});
  detail::check_tensor("kv", in.kv, t, {s, config.dim});
  if (in.sink.valid()) detail::check_tensor("sink", in.sink, DType::f32, {config.heads});
  if (in.indices.valid()) {
    detail::check_tensor("indices", in.indices, DType::i32, {s, config.topk});
    if (has_loss())
      throw Error(ErrorCode::unsupported,
                  "an indexer loss needs the indexer: give index_q, index_k and index_w, not lists");
    if (on_gpu() && config.topk > detail::cuda::most_given_topk) {
      throw Error(ErrorCode::unsupported, fmt::format("indices: on a GPU lists may have {} columns, got {}",
                                                      detail::cuda::most_given_topk, config.topk));
    }
    return;
  }
  detail::check_tensor("index_q", in.index_q, index_dtype(), {s, config.index_heads, index_dim});
  detail::check_tensor("index_k", in.index_k, index_dtype(), {s, index_dim});
  detail::check_tensor("index_w", in.index_w, DType::f32, {s, config.index_heads});
  if (scaled_keys()) {
    detail::check_tensor("index_k_scale", in.index_k_scale, DType::f32, {s});
  } else if (in.index_k_scale.valid()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("index_k_scale: given, but the index dtype is {}", to_string(index_dtype())));
  }
}

DsaMemory DsaAttention::Impl::memory(const Plan& plan) const {
  const auto s = static_cast<std::uint64_t>(plan.rows());
  const auto n = static_cast<std::uint64_t>(plan.landed_rows());
  const auto h = static_cast<std::uint64_t>(config.heads);
  const auto hi = static_cast<std::uint64_t>(config.index_heads);
  const auto d = static_cast<std::uint64_t>(config.dim);
  const auto k = static_cast<std::uint64_t>(config.topk);
  const auto i = static_cast<std::uint64_t>(index_dim);
  const auto v = static_cast<std::uint64_t>(value_dim);
  const std::uint64_t e = size_of(config.dtype);
  const std::uint64_t index_key = i * size_of(index_dtype()) + (scaled_keys() ? 4 : 0);
  const bool loss = has_loss();
  const std::uint64_t tile = config.loss == IndexerLossKind::dense
                                 ? 4 * static_cast<std::uint64_t>(loss_block_rows(plan) * most_visible_keys(plan))
                                 : 0;
  std::uint64_t carried = 0;
  for (const IndexerStep& step : plan.indexer_steps()) {
    if (step.first && !step.last) carried = std::max(carried, static_cast<std::uint64_t>(step.row_count()));
  }
  Prepared::Data arena(plan, batch_spec());
  detail::lay_out(arena);
  const std::uint64_t kept = config.keep_landed ? n * (e * d + (loss ? index_key : 0)) : 0;
  const std::uint64_t lists = 4 * s * k;
  const std::uint64_t sums = config.loss == IndexerLossKind::sparse ? 4 * s * k : 0;
  const bool forward = config.loss_pass == LossPass::forward;

  DsaMemory m;
  m.inputs =
      e * s * (h * d + d) + s * (size_of(index_dtype()) * hi * i + index_key) + 4 * s * hi + 4 * h;  // a sink's logits
  m.outputs = e * s * h * v + 4 * s * h + 4 * s * k + 4 * s + 8 + (loss && forward ? 8 * s : 0);
  m.landed = Prepared::slots * arena.gather.bytes + kept;
  // On a GPU backward finds the tile of forward.
  m.scratch = lists + sums + carried * (8 * k + 4) + (on_gpu() || !forward ? 1 : 2) * tile;
  m.saved = lists + (forward ? sums : 0) + 4 * s + kept;
  m.gradients = e * s * h * d + 4 * s * d + 4 * h +
                (loss ? size_of(index_gradient_dtype()) * s * hi * i + 4 * s * (i + hi) + (forward ? 0 : 8 * s) : 0);
  m.accumulators = 4 * n * (d + (loss ? i : 0));
  m.staging = Prepared::slots * arena.reduce.bytes;
  if (comm->stream_ordered()) m.tables = detail::table_bytes(arena);
  if (on_gpu()) m.tables += detail::plan_table_bytes(plan);
  return m;
}

}  // namespace tandem
