// SPDX-License-Identifier: Apache-2.0
#include "backward_suite.cuh"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"

namespace tandem::test {
namespace {

struct Shape {
  int heads;
  std::int64_t queries, keys;
  Lists lists = Lists::ascending;
  int topk = 2048, dim = 576;
  int visit = 0;
  bool deterministic = false;
};
/// dq of some rows against float64, from the forward's outputs.
void check_rows(const SparseBackwardArgs& args, const Shape& shape, const std::vector<std::int32_t>& lists) {
  BackwardCase c{.name = "timed shape", .heads = shape.heads, .dim = shape.dim, .topk = shape.topk, .queries = 1};
  for (const std::int64_t t : {std::int64_t{0}, shape.queries / 2 + 1, shape.queries - 1}) {
    const auto pairs = static_cast<std::size_t>(shape.heads), dim = static_cast<std::size_t>(shape.dim);
    BackwardData d;
    const auto fetch = [&](auto& to, const void* from, std::size_t row) {
      to.resize(row);
      const std::size_t bytes = row * sizeof(to[0]);
      CUDA_OK(cudaMemcpy(to.data(), static_cast<const std::uint8_t*>(from) + static_cast<std::size_t>(t) * bytes, bytes,
                         cudaMemcpyDeviceToHost));
    };
    fetch(d.q, args.q, pairs * dim);
    fetch(d.dout, args.dout, pairs * 512);
    fetch(d.out, args.out, pairs * 512);
    fetch(d.lse, args.lse, pairs);
    std::vector<std::uint16_t> dq;
    fetch(dq, args.dq, pairs * dim);
    // The row's own keys, one after the other, are all that the oracle has.
    c.keys = shape.topk;
    d.kv.resize(static_cast<std::size_t>(shape.topk) * dim);
    for (int i = 0; i < shape.topk; ++i) {
      const std::int64_t row = lists[static_cast<std::size_t>(t * shape.topk + i)];
      CUDA_OK(cudaMemcpy(d.kv.data() + static_cast<std::size_t>(i) * dim,
                         static_cast<const std::uint16_t*>(args.kv) + row * shape.dim, dim * 2,
                         cudaMemcpyDeviceToHost));
      d.lists.push_back(i);
    }
    d.length = {shape.topk};
    d.dkv.assign(d.kv.size(), 0.0F);
    const BackwardTruth truth = find_truth(c, d);
    Against queries;
    for (std::size_t i = 0; i < dq.size(); ++i) {
      queries.add(static_cast<double>(wide(dq[i])), truth.dq[i], truth.plain_dq[i]);
    }
    queries.report("timed shape", "dq", true);
  }
}

Figure bench(const Shape& shape, int runs, std::uint64_t seed) {
  const auto pairs = static_cast<std::size_t>(shape.queries * shape.heads), dim = static_cast<std::size_t>(shape.dim);
  DeviceArray<__nv_bfloat16> q(pairs * dim), dq(pairs * dim), out(pairs * 512), dout(pairs * 512);
  DeviceArray<__nv_bfloat16> kv(static_cast<std::size_t>(shape.keys) * dim);
  DeviceArray<float> lse(pairs), dkv(static_cast<std::size_t>(shape.keys) * dim);
  fill_normal(q.data(), q.size(), 1.0F, seed);
  fill_normal(kv.data(), kv.size(), 1.0F, seed + 1);
  fill_normal(dout.data(), dout.size(), 1.0F, seed + 3);
  CUDA_OK(cudaMemset(dkv.data(), 0, dkv.bytes()));
  const auto host_lists = make_lists(shape.lists, shape.queries, shape.keys, shape.topk, seed + 2);
  DeviceArray<std::int32_t> lists(host_lists);
  DeviceArray<std::int32_t> length(std::vector<std::int32_t>(static_cast<std::size_t>(shape.queries), shape.topk));
  SparseForwardArgs forward;
  SparseBackwardArgs args;
  forward.heads = args.heads = shape.heads;
  forward.dim = args.dim = shape.dim;
  forward.topk = args.topk = shape.topk;
  forward.scale = args.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  forward.queries = args.queries = args.row_end = shape.queries;
  forward.keys = args.keys = shape.keys;
  forward.q = args.q = q.data();
  forward.kv = args.kv = kv.data();
  forward.indices = args.indices = lists.data();
  forward.length = args.length = length.data();
  forward.out = out.data();
  forward.lse = lse.data();
  args.out = out.data();
  args.lse = lse.data();
  args.dout = dout.data();
  args.dq = dq.data();
  args.dkv = dkv.data();
  args.tiles_per_visit = shape.visit;
  args.deterministic = shape.deterministic;
  DeviceArray<std::uint8_t> workspace(sparse_backward_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  CUDA_OK(detail::sm90::launch_sparse_forward(forward, nullptr));
  const auto launch = [](const SparseBackwardArgs& these) {
    return [&these] { CUDA_OK(detail::sm90::launch_sparse_backward(these, nullptr)); };
  };
  const Times times = time_launches(launch(args), runs);
  check_rows(args, shape, host_lists);
  double passes[3];  // median of statistics, queries and keys alone
  for (int pass = 0; pass < 3; ++pass) {
    SparseBackwardArgs one = args;
    one.passes = 1U << pass;
    passes[pass] = time_launches(launch(one), std::max(3, runs / 4)).median;
  }
  const double entries = static_cast<double>(shape.queries) * shape.topk;
  const double tflops = 2.0 * shape.heads * (3 * shape.dim + 2 * 512) * entries / times.median * 1e-9;
  const double added = 4.0 * shape.dim * entries / passes[2] * 1e-9;
  std::printf(
      "H %3d d %d s %5lld n %6lld K %d %-9s visit %d%s %8.3f ms [%.3f, %.3f] %6.1f TFLOP/s; alone: statistics %.3f, "
      "queries %.3f (%.1f TFLOP/s), keys %.3f ms (%.2f TB/s added)\n",
      shape.heads, shape.dim, static_cast<long long>(shape.queries), static_cast<long long>(shape.keys), shape.topk,
      name_of(shape.lists), shape.visit, shape.deterministic ? " deterministic" : "", times.median, times.low,
      times.high, tflops, passes[0], passes[1], 2.0 * shape.heads * (2 * shape.dim + 512) * entries / passes[1] * 1e-9,
      passes[2], added);
  return {{"heads", std::int64_t{shape.heads}},
          {"dim", std::int64_t{shape.dim}},
          {"queries", shape.queries},
          {"keys", shape.keys},
          {"topk", std::int64_t{shape.topk}},
          {"lists", std::string(name_of(shape.lists))},
          {"visit", std::int64_t{shape.visit}},
          {"deterministic", shape.deterministic},
          {"ms", times.median},
          {"low", times.low},
          {"high", times.high},
          {"tflops", tflops},
          {"statistics_ms", passes[0]},
          {"queries_ms", passes[1]},
          {"keys_ms", passes[2]},
          {"added_tb_s", added}};
}

std::vector<Shape> shapes_of(bool quick, const std::vector<int>& heads) {
  std::vector<Shape> shapes;
  for (const int h : heads.empty() ? std::vector<int>{128, 64, 16} : heads) shapes.push_back({h, 4096, 65536});
  if (quick) return shapes;
  const auto more = [&](int h, std::int64_t keys, Lists lists, int visit = 0) {
    shapes.push_back({h, 4096, keys, lists, 2048, 576, visit});
  };
  for (const int h : {128, 64, 16}) more(h, 8192, Lists::ascending);
  for (const int h : {128, 64, 16}) more(h, 65536, Lists::local);
  for (const int visit : {2, 3, 5, 6, 8, 32}) more(128, 65536, Lists::ascending, visit);
  for (const int visit : {2, 3, 5, 8}) more(16, 65536, Lists::ascending, visit);
  more(128, 65536, Lists::local, 32);
  more(128, 65536, Lists::random);
  for (const int h : {128, 16}) shapes.push_back({h, 4096, 65536, Lists::ascending, 2048, 576, 0, true});
  for (const int h : {32, 8}) more(h, 65536, Lists::ascending);
  shapes.push_back({128, 8192, 131072});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 2048, 512});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 512});
  return shapes;
}

int main_with(const KernelProgram& program) {
  CUDA_OK(detail::sm90::load_sparse_backward_kernels());
  CUDA_OK(detail::sm90::load_sparse_forward_kernels());
  std::uint64_t seed = program.seed;
  if (program.check) {
    check_backward(seed, program.heads.empty() ? std::vector<int>{128, 64, 16, 8, 32, 1, 24, 100} : program.heads,
                   program.quick);
  }
  std::vector<Figure> figures;
  if (program.bench) {
    for (const Shape& shape : shapes_of(program.quick, program.heads))
      figures.push_back(bench(shape, program.runs, ++seed));
  }
  write_figures(program, device_name(), backward_failures, figures);
  std::printf("%s: %d failures\n", backward_failures == 0 ? "passed" : "FAILED", backward_failures);
  return backward_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) {
  using namespace tandem::test;
  const char* const about =
      "Checks the sparse MLA backward against float64, and times it. --quick checks less, and times 4096 queries and "
      "65536 rows in ascending lists only; --heads are those of the checks, and of these times.";
  return main_with(parse_kernel_program(argc, argv, about));
}
