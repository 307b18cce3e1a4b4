// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "forward_checks.cuh"

/// Checks and times the sparse forward. Exit code: 0 right, 1 wrong results, 2 a CUDA error, 3 a wrong command line.
namespace tandem::test {
namespace {

struct Shape {
  int heads;
  std::int64_t queries, keys;
  Lists lists = Lists::random;
  int topk = 2048, dim = 576;
};
const char* name_of(Lists lists) {
  return lists == Lists::random ? "random" : lists == Lists::ascending ? "ascending" : "local";
}

struct Figure {
  Shape shape;
  double median, low, high, tflops, gather;
};

Figure bench(const Shape& shape, int runs, std::uint64_t seed) {
  const auto pairs = static_cast<std::size_t>(shape.queries * shape.heads);
  DeviceArray<__nv_bfloat16> q(pairs * static_cast<std::size_t>(shape.dim)), out(pairs * 512);
  DeviceArray<__nv_bfloat16> kv(static_cast<std::size_t>(shape.keys * shape.dim));
  DeviceArray<float> lse(pairs);
  fill_normal(q.data(), q.size(), 1.0F, seed);
  fill_normal(kv.data(), kv.size(), 1.0F, seed + 1);
  DeviceArray<std::int32_t> lists(make_lists(shape.lists, shape.queries, shape.keys, shape.topk, seed + 2));
  DeviceArray<std::int32_t> length(std::vector<std::int32_t>(static_cast<std::size_t>(shape.queries), shape.topk));
  SparseForwardArgs args;
  args.heads = shape.heads;
  args.dim = shape.dim;
  args.topk = shape.topk;
  args.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
  args.queries = shape.queries;
  args.keys = shape.keys;
  args.q = q.data();
  args.q_head_stride = shape.dim;
  args.q_row_stride = std::int64_t{shape.heads} * shape.dim;
  args.kv = kv.data();
  args.kv_row_stride = shape.dim;
  args.indices = lists.data();
  args.length = length.data();
  args.out = out.data();
  args.lse = lse.data();
  cudaEvent_t from, to;
  CUDA_OK(cudaEventCreate(&from));
  CUDA_OK(cudaEventCreate(&to));
  std::vector<double> times;
  for (int i = -3; i < runs; ++i) {
    CUDA_OK(cudaEventRecord(from));
    CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr));
    CUDA_OK(cudaEventRecord(to));
    CUDA_OK(cudaEventSynchronize(to));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 0) times.push_back(ms);
  }
  CUDA_OK(cudaEventDestroy(from));
  CUDA_OK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  const double ms = times[times.size() / 2];
  const double entries = static_cast<double>(shape.queries) * shape.topk;
  const int head_blocks = shape.heads > 64 ? (shape.heads + 63) / 64 : 1;
  const Figure figure{shape,
                      ms,
                      times.front(),
                      times.back(),
                      2.0 * shape.heads * (shape.dim + 512) * entries / ms * 1e-9,
                      2.0 * shape.dim * entries * head_blocks / ms * 1e-9};
  std::vector<std::int64_t> rows = {0, 1, shape.queries / 2, shape.queries - 1};
  std::vector<std::uint16_t> some(rows.size() * static_cast<std::size_t>(shape.heads) * 512);
  std::vector<float> some_lse(rows.size() * static_cast<std::size_t>(shape.heads));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto width = static_cast<std::size_t>(shape.heads);
    const std::size_t at = static_cast<std::size_t>(rows[i]) * width;
    CUDA_OK(cudaMemcpy(some.data() + i * width * 512, out.data() + at * 512, width * 1024, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(some_lse.data() + i * width, lse.data() + at, width * sizeof(float), cudaMemcpyDeviceToHost));
  }
  const Accuracy a = compare_with_oracle(args, rows, some, some_lse);
  forward_report(accurate(a), "timed shape", accurate(a) ? "" : describe(a));
  std::printf("H %3d d %d s %5lld n %6lld K %d %-9s %8.3f ms [%.3f, %.3f] %6.1f TFLOP/s, gather %.2f TB/s\n",
              shape.heads, shape.dim, static_cast<long long>(shape.queries), static_cast<long long>(shape.keys),
              shape.topk, name_of(shape.lists), ms, figure.low, figure.high, figure.tflops, figure.gather);
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
  std::fprintf(json, " \"failures\": %d, \"figures\": [", forward_failures);
  const char* comma = "";
  for (const Figure& f : figures) {
    std::fprintf(
        json,
        "%s\n  {\"heads\": %d, \"dim\": %d, \"queries\": %lld, \"keys\": %lld, \"topk\": %d, \"lists\": \"%s\", "
        "\"ms\": %.4f, \"low\": %.4f, \"high\": %.4f, \"tflops\": %.1f, \"gather_tb_s\": %.3f}",
        comma, f.shape.heads, f.shape.dim, static_cast<long long>(f.shape.queries),
        static_cast<long long>(f.shape.keys), f.shape.topk, name_of(f.shape.lists), f.median, f.low, f.high, f.tflops,
        f.gather);
    comma = ",";
  }
  std::fprintf(json, "\n]}\n");
  std::fclose(json);
}

int usage() {
  std::printf(
      "sm90_forward_bench [--check] [--bench] [--quick] [--heads LIST] [--runs N] [--seed N] [--json FILE] [--commit "
      "ID]\n"
      "Checks the sparse MLA forward against float64 and times it. Without --check or --bench it does both; --quick\n"
      "times 4096 queries and 65536 rows in random order only. --heads: of the checks, and in --quick of the times.\n");
  return 0;
}

int main_with(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  bool check = false, timing = false, quick = false;
  std::vector<int> heads;
  int runs = 21;
  std::string json, commit = "unknown", command;
  forward_seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) % 1'000'000'007;
  for (int i = 0; i < argc; ++i) command += (i > 0 ? " " : "") + std::string(argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help") return usage();
    if (arg == "--check") {
      check = true;
      continue;
    }
    if (arg == "--bench" || arg == "--quick") {
      timing = true;
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
      forward_seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (arg == "--json") {
      json = value;
    } else if (arg == "--commit") {
      commit = value;
    } else {
      usage();
      return 3;
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(forward_seed));
  if (!check && !timing) check = timing = true;
  CUDA_OK(detail::sm90::load_sparse_forward_kernels());
  if (check) {
    check_forward(forward_seed, heads.empty() ? std::vector<int>{8, 16, 32, 64, 128, 1, 24, 100} : heads);
  }
  std::vector<Figure> figures;
  if (timing) {
    std::vector<Shape> shapes;
    if (quick) {
      for (const int h : heads.empty() ? std::vector<int>{128, 64, 16} : heads) shapes.push_back({h, 4096, 65536});
    } else {
      for (const int h : {128, 64, 32, 16, 8}) shapes.push_back({h, 4096, 65536});
      for (const int h : {128, 64, 32, 16, 8}) shapes.push_back({h, 4096, 8192});
      for (const int h : {128, 64, 16}) shapes.push_back({h, 4096, 65536, Lists::ascending});
      for (const int h : {128, 64, 16}) shapes.push_back({h, 4096, 65536, Lists::local});
      shapes.push_back({128, 8192, 131072});
      shapes.push_back({16, 8192, 131072});
      shapes.push_back({128, 4096, 65536, Lists::ascending, 2048, 512});
      shapes.push_back({128, 4096, 65536, Lists::ascending, 512});
    }
    for (const Shape& shape : shapes) figures.push_back(bench(shape, runs, ++forward_seed));
  }
  if (!json.empty()) write_json(json, command, commit, forward_seed, runs, figures);
  std::printf("%s: %d failures\n", forward_failures == 0 ? "passed" : "FAILED", forward_failures);
  return forward_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) { return tandem::test::main_with(argc, argv); }
