// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "backward_suite.cuh"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"

/// Checks and times the sparse backward. Exit code: 0 right, 1 wrong results, 2 a CUDA error, 3 a wrong command line.
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
const char* name_of(Lists lists) {
  return lists == Lists::random ? "random" : lists == Lists::ascending ? "ascending" : "local";
}

struct Figure {
  Shape shape;
  double median, low, high, tflops, scatter;
  double passes[3];  ///< median of statistics, queries and keys alone
};

struct Times {
  double median, low, high;
};
Times time_launches(const SparseBackwardArgs& args, int runs) {
  cudaEvent_t from, to;
  CUDA_OK(cudaEventCreate(&from));
  CUDA_OK(cudaEventCreate(&to));
  std::vector<double> times;
  for (int i = -2; i < runs; ++i) {
    CUDA_OK(cudaEventRecord(from));
    CUDA_OK(detail::sm90::launch_sparse_backward(args, nullptr));
    CUDA_OK(cudaEventRecord(to));
    CUDA_OK(cudaEventSynchronize(to));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 0) times.push_back(static_cast<double>(ms));
  }
  CUDA_OK(cudaEventDestroy(from));
  CUDA_OK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

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
  const Times times = time_launches(args, runs);
  check_rows(args, shape, host_lists);
  const double entries = static_cast<double>(shape.queries) * shape.topk;
  Figure figure{shape,
                times.median,
                times.low,
                times.high,
                2.0 * shape.heads * (3 * shape.dim + 2 * 512) * entries / times.median * 1e-9,
                0,
                {}};
  for (int pass = 0; pass < 3; ++pass) {
    SparseBackwardArgs one = args;
    one.passes = 1U << pass;
    figure.passes[pass] = time_launches(one, std::max(3, runs / 4)).median;
  }
  figure.scatter = 4.0 * shape.dim * entries / figure.passes[2] * 1e-9;
  std::printf(
      "H %3d d %d s %5lld n %6lld K %d %-9s visit %d%s %8.3f ms [%.3f, %.3f] %6.1f TFLOP/s; alone: statistics %.3f, "
      "queries %.3f (%.1f TFLOP/s), keys %.3f ms (%.2f TB/s added)\n",
      shape.heads, shape.dim, static_cast<long long>(shape.queries), static_cast<long long>(shape.keys), shape.topk,
      name_of(shape.lists), shape.visit, shape.deterministic ? " deterministic" : "", times.median, times.low,
      times.high, figure.tflops, figure.passes[0], figure.passes[1],
      2.0 * shape.heads * (2 * shape.dim + 512) * entries / figure.passes[1] * 1e-9, figure.passes[2], figure.scatter);
  return figure;
}

void write_json(const std::string& file, const std::string& command, const std::string& commit, std::uint64_t seed,
                int runs, const std::vector<Figure>& figures) {
  FILE* json = std::fopen(file.c_str(), "w");
  if (json == nullptr) {
    std::printf("cannot write %s\n", file.c_str());
    std::exit(3);
  }
  cudaDeviceProp device{};
  CUDA_OK(cudaGetDeviceProperties(&device, 0));
  std::fprintf(json, "{\"command\": \"%s\", \"commit\": \"%s\", \"device\": \"%s\", \"seed\": %llu, \"runs\": %d,\n",
               command.c_str(), commit.c_str(), device.name, static_cast<unsigned long long>(seed), runs);
  std::fprintf(json, " \"failures\": %d, \"figures\": [", backward_failures);
  const char* comma = "";
  for (const Figure& f : figures) {
    std::fprintf(
        json,
        "%s\n  {\"heads\": %d, \"dim\": %d, \"queries\": %lld, \"keys\": %lld, \"topk\": %d, \"lists\": \"%s\", "
        "\"visit\": %d, \"deterministic\": %s, \"ms\": %.4f, \"low\": %.4f, \"high\": %.4f, \"tflops\": %.1f, "
        "\"statistics_ms\": %.4f, "
        "\"queries_ms\": %.4f, \"keys_ms\": %.4f, \"added_tb_s\": %.3f}",
        comma, f.shape.heads, f.shape.dim, static_cast<long long>(f.shape.queries),
        static_cast<long long>(f.shape.keys), f.shape.topk, name_of(f.shape.lists), f.shape.visit,
        f.shape.deterministic ? "true" : "false", f.median, f.low, f.high, f.tflops, f.passes[0], f.passes[1],
        f.passes[2], f.scatter);
    comma = ",";
  }
  std::fprintf(json, "\n]}\n");
  std::fclose(json);
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
  for (const int visit : {2, 4, 16, 32}) more(128, 65536, Lists::ascending, visit);
  for (const int visit : {4, 32}) more(16, 65536, Lists::ascending, visit);
  more(128, 65536, Lists::local, 32);
  more(128, 65536, Lists::random);
  for (const int h : {128, 16}) shapes.push_back({h, 4096, 65536, Lists::ascending, 2048, 576, 0, true});
  for (const int h : {32, 8}) more(h, 65536, Lists::ascending);
  shapes.push_back({128, 8192, 131072});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 2048, 512});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 512});
  return shapes;
}

int usage() {
  std::printf(
      "sm90_backward_bench [--check] [--bench] [--quick] [--heads LIST] [--runs N] [--seed N] [--json FILE] [--commit "
      "ID]\n"
      "Checks the sparse MLA backward against float64 and times it. Without --check or --bench it does both; --quick\n"
      "checks less, and times 4096 queries and 65536 rows in ascending lists only. --heads: of the checks, and of "
      "these\n"
      "times.\n");
  return 0;
}

int main_with(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  bool check = false, timing = false, quick = false;
  std::vector<int> heads;
  int runs = 21;
  std::string json, commit = "unknown", command;
  auto seed = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000'007;
  for (int i = 0; i < argc; ++i) command += (i > 0 ? " " : "") + std::string(argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help") return usage();
    if (arg == "--check" || arg == "--bench" || arg == "--quick") {
      check = check || arg == "--check";
      timing = timing || arg == "--bench";
      quick = quick || arg == "--quick";
      continue;
    }
    const std::string value = ++i < argc ? argv[i] : "";
    if (arg == "--heads") {
      for (std::size_t at = 0; at < value.size();) {
        heads.push_back(std::atoi(value.c_str() + at));
        at = std::min(value.find(',', at), value.size() - 1) + 1;
      }
    } else if (arg == "--runs") {
      runs = std::max(1, std::atoi(value.c_str()));
    } else if (arg == "--seed") {
      seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (arg == "--json") {
      json = value;
    } else if (arg == "--commit") {
      commit = value;
    } else {
      usage();
      return 3;
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  if (!check && !timing) check = timing = true;
  CUDA_OK(detail::sm90::load_sparse_backward_kernels());
  CUDA_OK(detail::sm90::load_sparse_forward_kernels());
  const std::uint64_t first_seed = seed;
  if (check) check_backward(seed, heads.empty() ? std::vector<int>{128, 64, 16, 8, 32, 1, 24, 100} : heads, quick);
  std::vector<Figure> figures;
  if (timing) {
    for (const Shape& shape : shapes_of(quick, heads)) figures.push_back(bench(shape, runs, ++seed));
  }
  if (!json.empty()) write_json(json, command, commit, first_seed, runs, figures);
  std::printf("%s: %d failures\n", backward_failures == 0 ? "passed" : "FAILED", backward_failures);
  return backward_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) { return tandem::test::main_with(argc, argv); }
