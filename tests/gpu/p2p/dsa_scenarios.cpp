// SPDX-License-Identifier: Apache-2.0
#include "gpu/p2p/dsa_scenarios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "device/bf16.hpp"
#include "device/e4m3.hpp"
#include "tandem/dsa.hpp"
#include "unit/dsa/run.hpp"

namespace tandem::testing_p2p {
namespace {

using std::chrono::seconds;
using testing::Problem;
using testing::Results;

constexpr double dloss = 0.7;
Deadline soon() { return Deadline::after(seconds(30)); }

Device gpu_of(int rank) { return Device::cuda(rank % std::max(1, Device::cuda_count()), {.poison = true}); }

struct Choices {
  explicit Choices(const Arguments& a)
      : dtype(a.number("bf16", 0) != 0 ? DType::bf16 : DType::f32),
        index_dtype(a.number("e4m3", 0) != 0 ? DType::f8e4m3 : dtype),
        wire(a.number("wire16", 0) != 0 ? DType::bf16 : DType::f32),
        loss(static_cast<IndexerLossKind>(a.number("loss", 1))),
        loss_pass(a.number("early", 0) != 0 ? LossPass::forward : LossPass::backward),
        keep(a.number("keep", 1) != 0),
        lists(a.number("lists", 0) != 0),
        tuned(a.number("tuned", 0) != 0),
        deterministic(a.number("deterministic", 0) != 0) {}
  DType dtype, index_dtype, wire;
  IndexerLossKind loss;
  LossPass loss_pass;
  bool keep, lists;
  bool tuned;  ///< a shape that kernels of one generation of GPUs take, where there are any
  bool deterministic;
};

/// Equal on all ranks. Packed documents with pads, an empty one among them.
Problem make_problem(std::mt19937_64& rng, const Choices& choices) {
  const testing::Shape odd{.heads = 18, .index_heads = 3, .topk = 21}, tuned{.heads = 16, .index_heads = 8, .topk = 64};
  const std::int64_t longer = choices.tuned ? 100 : 0;
  Problem p = testing::make_problem(rng, {90 + longer, 0, 1, 61 + longer}, 3, choices.tuned ? tuned : odd,
                                    choices.dtype, choices.index_dtype);
  if (!choices.lists) return p;
  for (std::int64_t i = 0; i < p.global.rows * p.global.topk; ++i)
    p.lists.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(p.global.rows + 3)) - 2);
  return p;
}

/// A tensor of this rank's rows, which can be filled again from another problem.
class Shard {
 public:
  Shard(const Communicator& comm, DType dtype, std::initializer_list<std::int64_t> shape)
      : tensor(Tensor::allocate(comm.device(), dtype, shape)) {}

  template <class T>
  void fill(const Plan& plan, const std::vector<T>& global, const Stream& stream) const {
    const std::int64_t n = tensor.dims() == 1 ? 1 : tensor.row_elements();
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype()));
    for (std::int64_t i = 0; i < plan.rows(); ++i) {
      const T* from = global.data() + plan.layout().global_position(plan.rank(), i) * n;
      for (std::int64_t e = 0; e < n; ++e) {
        std::byte* to = bytes.data() + static_cast<std::size_t>(i * n + e) * size_of(tensor.dtype());
        if (tensor.dtype() == DType::bf16) {
          const std::uint16_t word = detail::bf16_from_float(static_cast<float>(from[e]));
          std::memcpy(to, &word, sizeof(word));
        } else if (tensor.dtype() == DType::f8e4m3) {
          *to = std::byte{detail::e4m3_from_float(static_cast<float>(from[e]))};
        } else {
          std::memcpy(to, from + e, sizeof(T));
        }
      }
    }
    stream.copy(tensor.data(), bytes.data(), bytes.size());
    stream.synchronize(soon());
  }

  Tensor tensor;
};

/// Forward and backward of one rank, with the memory of its inputs.
class Rank {
 public:
  Rank(Communicator& comm, const Problem& problem, const Choices& choices)
      : comm_(comm),
        plan_(SequenceLayout::zigzag(problem.cu, comm.size(), problem.padded), comm.rank(), {8, 3, 7, 4}),
        stream_(comm.device().create_stream({.name = "compute"})),
        kernels_(cuda_kernels(comm.device(), {.deterministic = choices.deterministic})),
        attention_(comm, kernels_, config(problem, choices)),
        lists_(choices.lists) {
    const auto& g = problem.global;
    const std::int64_t s = plan_.rows();
    attention_.prepare(plan_);
    const auto add = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
      return shards_.emplace_back(comm, dtype, shape).tensor;
    };
    in_.q = add(choices.dtype, {s, g.heads, g.dim});
    in_.kv = add(choices.dtype, {s, g.dim});
    dout_ = add(choices.dtype, {s, g.heads, value_dim});
    if (lists_) {
      in_.indices = add(DType::i32, {s, g.topk});
    } else {
      in_.index_q = add(choices.index_dtype, {s, g.index_heads, index_dim});
      in_.index_k = add(choices.index_dtype, {s, index_dim});
      in_.index_w = add(DType::f32, {s, g.index_heads});
      if (choices.index_dtype == DType::f8e4m3) in_.index_k_scale = add(DType::f32, {s});
    }
    in_.sink = Tensor::allocate(comm.device(), DType::f32, {g.heads});
    set(problem);
  }

  void set(const Problem& problem) const {
    const auto& g = problem.global;
    shards_[0].fill(plan_, g.q, stream_);
    shards_[1].fill(plan_, g.kv, stream_);
    shards_[2].fill(plan_, g.dout, stream_);
    if (lists_) {
      shards_[3].fill(plan_, problem.lists, stream_);
    } else {
      shards_[3].fill(plan_, g.index_q, stream_);
      shards_[4].fill(plan_, g.index_k, stream_);
      shards_[5].fill(plan_, g.index_w, stream_);
      if (in_.index_k_scale.valid()) shards_[6].fill(plan_, g.index_k_scale, stream_);
    }
    stream_.copy(in_.sink.data(), g.sink.data(), g.sink.size() * sizeof(float));
    stream_.synchronize(soon());
  }

  struct Enqueued {
    DsaAttention::Forward forward;
    DsaAttention::Backward backward;
  };
  /// Of two layers with the same inputs, the second forward before the first backward; results of both.
  std::vector<Enqueued> enqueue() {
    std::vector<Enqueued> layers(2);
    for (Enqueued& e : layers) e.forward = attention_.forward(plan_, in_, stream_);
    for (auto e = layers.rbegin(); e != layers.rend(); ++e) {
      e->backward = attention_.backward(e->forward.context, in_, dout_, dloss, stream_);
      e->backward.reduce.wait(stream_);
    }
    return layers;
  }
  void synchronize() { attention_.synchronize(stream_, soon()); }
  std::vector<Enqueued> run() {
    std::vector<Enqueued> layers = enqueue();
    synchronize();
    for (Enqueued& e : layers) {
      e.forward.gather.synchronize(soon());
      e.backward.reduce.synchronize(soon());
    }
    return layers;
  }

  /// This rank's rows, in their local order.
  Results download(const Enqueued& e) const {
    const DsaOutputs& o = e.forward.outputs;
    const DsaGradients& g = e.backward.gradients;
    Results r;
    r.out = floats(o.out);
    r.lse = floats(o.lse);
    r.dq = floats(g.dq);
    r.dkv = floats(g.dkv);
    r.d_index_q = floats(g.d_index_q);
    r.d_index_k = floats(g.d_index_k);
    r.d_index_w = floats(g.d_index_w);
    r.dsink = floats(g.dsink);
    r.loss = values<double>(o.loss.valid() ? o.loss : g.loss);
    r.indices = values<std::int32_t>(o.indices);
    r.length = values<std::int32_t>(o.length);
    return r;
  }

  const Plan& plan() const { return plan_; }
  const Stream& stream() const { return stream_; }

 private:
  static DsaConfig config(const Problem& problem, const Choices& choices) {
    DsaConfig c;
    c.heads = problem.global.heads;
    c.index_heads = problem.global.index_heads;
    c.dim = problem.global.dim;
    c.topk = problem.global.topk;
    c.scale = static_cast<float>(problem.global.scale);
    c.dtype = choices.dtype;
    c.index_dtype = choices.index_dtype;
    c.wire = choices.wire;
    c.loss = choices.loss;
    c.loss_pass = choices.loss_pass;
    c.deterministic = choices.deterministic;
    c.keep_landed = choices.keep;
    return c;
  }
  template <class T>
  std::vector<T> values(const Tensor& t) const {
    std::vector<T> all(t.valid() ? static_cast<std::size_t>(t.elements()) : 0);
    if (all.empty()) return all;
    stream_.copy(all.data(), t.data(), all.size() * sizeof(T));
    stream_.synchronize(soon());
    return all;
  }
  std::vector<float> floats(const Tensor& t) const {
    if (!t.valid() || t.dtype() == DType::f32) return values<float>(t);
    std::vector<float> all;
    for (const std::uint16_t x : values<std::uint16_t>(t)) all.push_back(detail::bf16_to_float(x));
    return all;
  }

  Communicator& comm_;
  const Plan plan_;
  const Stream stream_;
  const std::shared_ptr<KernelSet> kernels_;
  DsaAttention attention_;
  const bool lists_;
  std::vector<Shard> shards_;
  DsaInputs in_;
  Tensor dout_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Rows of `local`, which are those of a plan, are the same in `all`; all rows if there is no plan.
template <class T>
void expect_rows(const char* name, const Plan& plan, const std::vector<T>& local, const std::vector<T>& all,
                 double tolerance) {
  if (plan.rows() == 0) return;
  const auto n = static_cast<std::int64_t>(local.size()) / plan.rows();
  reference::RelativeError error;
  bool same = true;
  for (std::int64_t i = 0; i < plan.rows(); ++i) {
    const T* got = local.data() + i * n;
    const T* want = all.data() + plan.layout().global_position(plan.rank(), i) * n;
    same = same && (n == 0 || std::memcmp(got, want, static_cast<std::size_t>(n) * sizeof(T)) == 0);
    for (std::int64_t e = 0; e < n; ++e) error.add(static_cast<double>(got[e]), static_cast<double>(want[e]));
  }
  if (tolerance == 0 ? !same : !(error.value() <= tolerance))
    throw std::runtime_error(fmt::format("{}: differs from that of one rank, error {:.2e}", name, error.value()));
}

/// What a rank computes of its rows alone has the same bits as of one rank.
void expect_as_alone(const Plan& plan, const Results& r, const Results& alone, const Choices& choices) {
  expect_rows("indices", plan, r.indices, alone.indices, 0);
  expect_rows("length", plan, r.length, alone.length, 0);
  expect_rows("out", plan, r.out, alone.out, 0);
  expect_rows("lse", plan, r.lse, alone.lse, 0);
  expect_rows("loss", plan, r.loss, alone.loss, 0);
  expect_rows("dq", plan, r.dq, alone.dq, 0);
  expect_rows("d_index_q", plan, r.d_index_q, alone.d_index_q, 0);
  expect_rows("d_index_w", plan, r.d_index_w, alone.d_index_w, 0);
  const double sums = choices.wire == DType::bf16 ? 0x1p-8 : 2e-6;
  expect_rows("dkv", plan, r.dkv, alone.dkv, sums);
  expect_rows("d_index_k", plan, r.d_index_k, alone.d_index_k, sums);
}

/// Errors against float64 are at most twice those of the cpu kernels.
void expect_reference(const Problem& problem, const Results& r, const Choices& choices) {
  testing::RunOptions options;
  options.cluster.ranks = 1;
  options.loss = choices.loss;
  options.dloss = dloss;
  const Results of_cpu = testing::run(problem, options);
  const testing::Errors got = testing::compare(problem, r, choices.loss, dloss);
  const testing::Errors most = testing::compare(problem, of_cpu, choices.loss, dloss);
  const auto expect = [](const char* name, double error, double of_cpu_error, double more = 2e-6) {
    if (!(error <= 2 * of_cpu_error + more))
      throw std::runtime_error(fmt::format("{}: error {:.2e}, of the cpu {:.2e}", name, error, of_cpu_error));
  };
  expect("out", got.out, most.out);
  expect("lse", got.lse, most.lse);
  expect("dq", got.dq, most.dq);
  // Products of bf16: see the tests of the kernels.
  const double products = choices.tuned ? 0x1p-9 : 2e-6, sums = choices.tuned ? 5e-5 : 2e-6;
  expect("dkv", got.dkv, most.dkv, products);
  expect("dsink", got.dsink, most.dsink);
  expect("d_index_q", got.d_index_q, most.d_index_q, sums);
  expect("d_index_k", got.d_index_k, most.d_index_k, sums);
  expect("d_index_w", got.d_index_w, most.d_index_w, sums);
  expect("loss", got.loss, most.loss, sums);
}

Communicator make_communicator(const Arguments& a) {
  CommunicatorOptions options;
  options.device = gpu_of(a.rank);
  options.rendezvous_timeout = seconds(30);
  options.operation_timeout = seconds(20);
  return Communicator::from_environment(options);
}
Communicator alone_on(const Device& device) {
  CommunicatorOptions options;
  options.device = device;
  return Communicator::create(options);
}

}  // namespace

void dsa(const Arguments& a) {
  const Choices choices(a);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  const Problem problem = make_problem(rng, choices);
  Communicator comm = make_communicator(a);
  Results alone;
  {
    Communicator single = alone_on(comm.device());
    Choices unrounded = choices;
    unrounded.wire = DType::f32;
    Rank rank(single, problem, unrounded);
    alone = rank.download(rank.run().front());
  }
  if (a.rank == 0) expect_reference(problem, alone, choices);
  Rank rank(comm, problem, choices);
  for (int round = 0; round < 2; ++round) {
    const auto layers = rank.run();
    for (const auto& layer : layers) expect_as_alone(rank.plan(), rank.download(layer), alone, choices);
    const Results first = rank.download(layers[0]), second = rank.download(layers[1]);
    if (choices.deterministic && !(same_bits(first.dkv, second.dkv) && same_bits(first.d_index_k, second.d_index_k) &&
                                   same_bits(first.dsink, second.dsink)))
      throw std::runtime_error("sums of a deterministic set differ between two layers with the same inputs");
  }
  fmt::print("{}\n", comm.route((a.rank + 1) % a.size));
  comm.finalize(soon());
}

void dsa_captured(const Arguments& a) {
  const Choices choices(a);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 1)));
  const Problem problems[] = {make_problem(rng, choices), make_problem(rng, choices)};
  Communicator comm = make_communicator(a);
  Rank rank(comm, problems[0], choices);
  Results eager[2];
  for (int i : {1, 0}) {
    rank.set(problems[i]);
    comm.barrier(soon());
    eager[i] = rank.download(rank.run().front());
  }
  if (same_bits(eager[0].out, eager[1].out) && rank.plan().rows() > 0)
    throw std::runtime_error("both problems have the same result");
  const auto cuda = static_cast<cudaStream_t>(rank.stream().native());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  const auto check = [](cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); };
  check(cudaStreamBeginCapture(cuda, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const auto layers = rank.enqueue();
  check(cudaStreamEndCapture(cuda, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (long n = 0; n < a.number("replays", 6); ++n) {
    const auto i = static_cast<std::size_t>(n % 2);
    rank.set(problems[i]);
    check(cudaGraphLaunch(executable, cuda), "cudaGraphLaunch");
    rank.synchronize();
    for (const auto& layer : layers) {
      const Results r = rank.download(layer);
      const bool same = same_bits(r.out, eager[i].out) && same_bits(r.lse, eager[i].lse) &&
                        same_bits(r.indices, eager[i].indices) && same_bits(r.length, eager[i].length) &&
                        same_bits(r.loss, eager[i].loss) && same_bits(r.dq, eager[i].dq) &&
                        same_bits(r.d_index_q, eager[i].d_index_q) && same_bits(r.d_index_w, eager[i].d_index_w);
      if (!same) throw std::runtime_error(fmt::format("replay {} differs from eager", n));
      reference::RelativeError error;
      error.add<float, float>(r.dkv, eager[i].dkv);
      error.add<float, float>(r.d_index_k, eager[i].d_index_k);
      if (!(error.value() <= 2e-6))
        throw std::runtime_error(fmt::format("replay {}: sums differ by {:.2e}", n, error.value()));
    }
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  comm.barrier(soon());
}

}  // namespace tandem::testing_p2p
