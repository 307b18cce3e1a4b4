// SPDX-License-Identifier: Apache-2.0
#include "unit/dsa/run.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "device/bf16.hpp"
#include "device/e4m3.hpp"
#include "tandem/kernels.hpp"

namespace tandem::testing {

namespace {

// What the operator allocates begins as garbage, so that what it leaves out shows.
[[maybe_unused]] const int garbage = mallopt(M_PERTURB, 0x5a);

// Rows of a global array that a rank holds, as a tensor.
Tensor shard(const Communicator& comm, const Plan& plan, const std::vector<float>& global,
             std::initializer_list<std::int64_t> shape, DType dtype) {
  Tensor t = Tensor::allocate(comm.device(), dtype, shape);
  const std::int64_t n = t.dims() == 1 ? 1 : t.row_elements();
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    const float* from = global.data() + plan.layout().global_position(plan.rank(), i) * n;
    for (std::int64_t e = 0; e < n; ++e) {
      if (dtype == DType::bf16) {
        t.data_as<std::uint16_t>()[i * n + e] = detail::bf16_from_float(from[e]);
      } else if (dtype == DType::f8e4m3) {
        t.data_as<std::uint8_t>()[i * n + e] = detail::e4m3_from_float(from[e]);
      } else {
        t.data_as<float>()[i * n + e] = from[e];
      }
    }
  }
  return t;
}

template <class T>
void unshard(const Plan& plan, const Tensor& local, std::vector<T>& global) {
  if (!local.valid()) return;
  const std::int64_t n = local.dims() == 1 ? 1 : local.row_elements();
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    T* to = global.data() + plan.layout().global_position(plan.rank(), i) * n;
    for (std::int64_t e = 0; e < n; ++e) {
      if constexpr (std::is_same_v<T, float>) {
        to[e] = local.dtype() == DType::bf16 ? detail::bf16_to_float(local.data_as<std::uint16_t>()[i * n + e])
                                             : local.data_as<float>()[i * n + e];
      } else {
        to[e] = local.data_as<T>()[i * n + e];
      }
    }
  }
}

void resize(Results& r, const Problem& p, const RunOptions& o) {
  const auto& g = p.global;
  const auto rows = static_cast<std::size_t>(g.rows);
  auto poison = [&](std::vector<float>& v, std::int64_t n) {
    v.assign(rows * static_cast<std::size_t>(n), std::numeric_limits<float>::quiet_NaN());
  };
  poison(r.out, g.heads * value_dim);
  poison(r.lse, g.heads);
  poison(r.dq, g.heads * g.dim);
  poison(r.dkv, g.dim);
  r.indices.assign(rows * static_cast<std::size_t>(g.topk), -7);
  r.length.assign(rows, -7);
  r.dsink.assign(g.sink.size(), 0.0F);
  if (o.loss == IndexerLossKind::none) return;
  poison(r.d_index_q, g.index_heads * index_dim);
  poison(r.d_index_k, index_dim);
  poison(r.d_index_w, g.index_heads);
  r.loss.assign(rows, std::nan(""));
}

DsaInputs inputs_of(const Communicator& comm, const Plan& plan, const Problem& p) {
  const auto& g = p.global;
  const std::int64_t s = plan.rows();
  DsaInputs in;
  in.q = shard(comm, plan, g.q, {s, g.heads, g.dim}, p.dtype);
  in.kv = shard(comm, plan, g.kv, {s, g.dim}, p.dtype);
  if (p.lists.empty()) {
    in.index_q = shard(comm, plan, g.index_q, {s, g.index_heads, index_dim}, p.index_dtype);
    in.index_k = shard(comm, plan, g.index_k, {s, index_dim}, p.index_dtype);
    if (!g.index_k_scale.empty()) in.index_k_scale = shard(comm, plan, g.index_k_scale, {s}, DType::f32);
    in.index_w = shard(comm, plan, g.index_w, {s, g.index_heads}, DType::f32);
  } else {
    in.indices = Tensor::allocate(comm.device(), DType::i32, {s, g.topk});
    for (std::int64_t i = 0; i < s; ++i) {
      std::copy_n(p.lists.data() + plan.layout().global_position(plan.rank(), i) * g.topk, g.topk,
                  in.indices.data_as<std::int32_t>() + i * g.topk);
    }
  }
  if (!g.sink.empty()) {
    in.sink = Tensor::allocate(comm.device(), DType::f32, {g.heads});
    std::copy(g.sink.begin(), g.sink.end(), in.sink.data_as<float>());
  }
  return in;
}

// The formula against what the device gave out. Tensors that the formula does not know are dout's.
void check_memory(const Communicator& comm, const DsaMemory& memory, const Tensor& dout) {
  const std::uint64_t bill = memory.total() + dout.row_bytes() * static_cast<std::uint64_t>(dout.size(0));
  const std::uint64_t peak = comm.device().memory_use().peak;
  EXPECT_LE(peak, bill) << "rank " << comm.rank();
  EXPECT_GE(static_cast<double>(peak), 0.95 * static_cast<double>(bill) - 4096) << "rank " << comm.rank();
}

void run_rank(Communicator& comm, const Problem& p, const RunOptions& o, Results& results, std::vector<float>& dsinks,
              std::mutex& mutex) {
  const auto& g = p.global;
  const SequenceLayout placed = o.partition == Partition::zigzag
                                    ? SequenceLayout::zigzag(p.cu, comm.size(), p.padded)
                                    : SequenceLayout::contiguous(p.cu, comm.size(), p.padded);
  const SequenceLayout layout = o.keys_only.empty() ? placed : placed.keys_only(o.keys_only);
  const Plan plan(layout, comm.rank(), o.plan);
  DsaConfig config;
  config.heads = g.heads;
  config.index_heads = g.index_heads;
  config.dim = g.dim;
  config.topk = g.topk;
  config.scale = static_cast<float>(g.scale);
  config.dtype = p.dtype;
  if (p.index_dtype != p.dtype) config.index_dtype = p.index_dtype;
  config.wire = o.wire;
  config.loss = o.loss;
  config.loss_pass = o.loss_pass;
  config.target_hook = o.target_hook;
  config.keep_landed = o.keep_landed;
  CpuKernelOptions kernel_options;
  kernel_options.threads = o.kernel_threads;
  std::shared_ptr<KernelSet> kernels = cpu_kernels(kernel_options);
  if (o.wrap) kernels = o.wrap(kernels, comm);
  DsaAttention attention(comm, kernels, config);
  attention.prepare(plan);
  const Stream stream = comm.device().create_stream({"compute", false});
  const DsaInputs in = inputs_of(comm, plan, p);
  const Tensor dout = shard(comm, plan, g.dout, {plan.rows(), g.heads, value_dim}, p.dtype);
  if (comm.rank() == o.late_rank) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<DsaAttention::Forward> forwards;
  for (int layer = 0; layer < o.layers; ++layer) forwards.push_back(attention.forward(plan, in, stream));
  std::vector<DsaAttention::Backward> backwards;
  for (int layer = o.layers - 1; layer >= 0; --layer) {
    backwards.push_back(
        attention.backward(forwards[static_cast<std::size_t>(layer)].context, in, dout, o.dloss, stream));
  }
  // Of one layer: the first's forward and its backward, which ran last.
  const DsaAttention::Forward& forward = forwards.front();
  const DsaAttention::Backward& backward = backwards.back();
  if (o.enqueued) o.enqueued(comm, forward, backward);
  backward.reduce.wait(stream);
  stream.synchronize(soon());
  for (const auto& f : forwards) f.gather.synchronize(soon());
  for (const auto& b : backwards) b.reduce.synchronize(soon());
  // Of stream-ordered transports it does not know the tables, nor the device their arenas.
  if (o.layers == 1 && o.cluster.transport != "stream" && !o.cluster.transport.starts_with("staged:"))
    check_memory(comm, attention.memory(plan), dout);

  const std::lock_guard lock(mutex);
  const DsaOutputs& out = forward.outputs;
  const DsaGradients& grads = backward.gradients;
  unshard(plan, out.out, results.out);
  unshard(plan, out.lse, results.lse);
  unshard(plan, out.indices, results.indices);
  unshard(plan, out.length, results.length);
  EXPECT_FALSE(out.loss.valid() && grads.loss.valid());
  unshard(plan, out.loss, results.loss);
  unshard(plan, grads.loss, results.loss);
  unshard(plan, grads.dq, results.dq);
  unshard(plan, grads.dkv, results.dkv);
  unshard(plan, grads.d_index_q, results.d_index_q);
  unshard(plan, grads.d_index_k, results.d_index_k);
  unshard(plan, grads.d_index_w, results.d_index_w);
  for (std::size_t h = 0; h < g.sink.size(); ++h) {
    dsinks[static_cast<std::size_t>(comm.rank()) * g.sink.size() + h] = grads.dsink.data_as<float>()[h];
  }
  results.gathered_bytes += forward.gather.received_bytes();
}

}  // namespace

Problem make_problem(std::mt19937_64& rng, const std::vector<std::int64_t>& lengths, std::int64_t pad,
                     const Shape& shape, DType dtype, std::optional<DType> index_dtype) {
  Problem p;
  p.dtype = dtype;
  p.index_dtype = index_dtype.value_or(dtype);
  p.cu = p.padded = {0};
  auto& g = p.global;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length + pad; ++i) {
      g.begin.push_back(p.padded.back());
      g.end.push_back(i < length ? p.padded.back() + i + 1 : p.padded.back());
    }
    p.cu.push_back(p.cu.back() + length);
    p.padded.push_back(p.padded.back() + length + pad);
  }
  g.rows = g.keys = p.padded.back();
  g.heads = shape.heads;
  g.index_heads = shape.index_heads;
  g.dim = shape.dim;
  g.topk = shape.topk;
  g.scale = static_cast<double>(1.0F / std::sqrt(static_cast<float>(shape.dim)));
  g.loss_scale = p.cu.back() > 0 ? 1.0 / static_cast<double>(p.cu.back()) : 0.0;
  std::normal_distribution<float> normal;
  auto fill = [&](std::vector<float>& v, std::int64_t n, DType type, float size) {
    v.resize(static_cast<std::size_t>(g.rows * n));
    for (std::int64_t t = 0; t < g.rows; ++t) {
      const bool real = g.end[static_cast<std::size_t>(t)] > g.begin[static_cast<std::size_t>(t)];
      for (std::int64_t e = 0; e < n; ++e) {
        const float x = size * normal(rng);
        v[static_cast<std::size_t>(t * n + e)] = !real                 ? std::numeric_limits<float>::quiet_NaN()
                                                 : type == DType::bf16 ? detail::bf16_round(x)
                                                 : type == DType::f8e4m3
                                                     ? detail::e4m3_to_float(detail::e4m3_from_float(x))
                                                     : x;
      }
    }
  };
  fill(g.q, g.heads * g.dim, dtype, 1.0F);
  fill(g.kv, g.dim, dtype, 1.0F);
  fill(g.dout, g.heads * value_dim, dtype, 1.0F);
  fill(g.index_q, g.index_heads * index_dim, p.index_dtype, 1.0F);
  fill(g.index_k, index_dim, p.index_dtype, 1.0F);
  fill(g.index_w, g.index_heads, DType::f32, 0.1F);
  if (p.index_dtype == DType::f8e4m3) {
    fill(g.index_k_scale, 1, DType::f32, 0.5F);
    for (float& scale : g.index_k_scale) scale = std::abs(scale) + 0.1F;
  }
  if (shape.sink) {
    for (std::int64_t h = 0; h < g.heads; ++h) g.sink.push_back(normal(rng));
  }
  return p;
}

Results run(const Problem& problem, const RunOptions& options) {
  Results results;
  resize(results, problem, options);
  std::mutex mutex;
  // By rank, to be summed in a fixed order.
  std::vector<float> dsinks(static_cast<std::size_t>(options.cluster.ranks) * results.dsink.size(), 0.0F);
  run_cluster(options.cluster, [&](Communicator& comm) { run_rank(comm, problem, options, results, dsinks, mutex); });
  for (std::size_t i = 0; i < dsinks.size(); ++i) results.dsink[i % results.dsink.size()] += dsinks[i];
  return results;
}

reference::Lists lists_of(const Results& results, std::int64_t topk) {
  reference::Lists lists(results.length.size());
  for (std::size_t t = 0; t < lists.size(); ++t) {
    for (std::int32_t i = 0; i < results.length[t]; ++i) {
      lists[t].push_back(results.indices[t * static_cast<std::size_t>(topk) + static_cast<std::size_t>(i)]);
    }
  }
  return lists;
}

double Errors::worst() const { return std::max({out, lse, dq, dkv, dsink, d_index_q, d_index_k, d_index_w, loss}); }

Errors compare(const Problem& problem, const Results& results, IndexerLossKind kind, double dloss) {
  reference::Problem p = problem.global;
  p.upstream = dloss;
  if (p.rows == 0) return {};
  const reference::Lists lists = lists_of(results, p.topk);
  const reference::Attention attention = reference::attention(p, lists);
  auto error = [](const auto& got, const auto& want) {
    EXPECT_EQ(got.size(), want.size());
    reference::RelativeError e;
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) e.add(static_cast<double>(got[i]), want[i]);
    return e.value();
  };
  Errors e{};
  e.out = error(results.out, attention.out);
  e.lse = error(results.lse, attention.lse);
  e.dq = error(results.dq, attention.dq);
  e.dkv = error(results.dkv, attention.dkv);
  e.dsink = error(results.dsink, attention.dsink);
  if (kind == IndexerLossKind::none) return e;
  auto loss = reference::indexer_loss(p, kind == IndexerLossKind::sparse ? &lists : nullptr, {0, p.rows});
  const std::vector<double> d_index_q(results.d_index_q.begin(), results.d_index_q.end());
  EXPECT_EQ(d_index_q.size(), loss.d_index_q.size());
  if (d_index_q.size() == loss.d_index_q.size()) reference::settle_kinks(p, {0, p.rows}, loss, d_index_q);
  e.d_index_q = error(results.d_index_q, loss.d_index_q);
  e.d_index_k = error(results.d_index_k, loss.d_index_k);
  e.d_index_w = error(results.d_index_w, loss.d_index_w);
  double got = 0, want = 0, magnitude = 0;
  for (std::size_t t = 0; t < loss.loss.size(); ++t) {
    got += results.loss[t];
    want += loss.loss[t];
    magnitude += loss.magnitude[t];
  }
  e.loss = magnitude > 0 ? std::abs(got - want) / magnitude : std::abs(got - want);
  return e;
}

}  // namespace tandem::testing
