// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <string>

#include "indexer_metamorphic.cuh"

/// Checks and times the indexer with fused top-k. Exit code: 0 right, 1 wrong results, 2 a CUDA error.
namespace tandem::test {
namespace {

struct Timing {
  double median, low, high;
};
Timing time_runs(const std::function<void()>& launch, int runs) {
  cudaEvent_t from, to;
  CUDA_OK(cudaEventCreate(&from));
  CUDA_OK(cudaEventCreate(&to));
  for (int i = 0; i < 3; ++i) launch();
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    CUDA_OK(cudaEventRecord(from));
    launch();
    CUDA_OK(cudaEventRecord(to));
    CUDA_OK(cudaEventSynchronize(to));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, from, to));
    times.push_back(ms);
  }
  CUDA_OK(cudaEventDestroy(from));
  CUDA_OK(cudaEventDestroy(to));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

struct Shape {
  std::int64_t queries, keys;
  int heads, topk;
  bool causal = false;  ///< row t sees keys up to its own place at the end of the keys
};

void bench(IndexerDtype dtype, const Shape& shape, int runs, FILE* json, bool patterns) {
  Inputs in(dtype, shape.queries, shape.keys, shape.heads);
  Outputs out(shape.queries, shape.topk);
  Bounds bounds;
  double pairs = 0;
  for (std::int64_t t = 0; t < shape.queries; ++t) {
    const std::int64_t end = shape.causal ? shape.keys - shape.queries + t + 1 : shape.keys;
    bounds.begin.push_back(0);
    bounds.end.push_back(static_cast<std::int32_t>(end));
    pairs += static_cast<double>(end);
  }
  DeviceArray<std::int32_t> begin(bounds.begin), end(bounds.end);
  IndexerArgs args;
  in.attach(args);
  args.topk = shape.topk;
  args.key_begin = begin.data();
  args.key_end = end.data();
  args.row_count = static_cast<std::int32_t>(shape.queries);
  out.attach(args, false);
  DeviceArray<std::uint8_t> scratch(detail::sm90::indexer_scratch_bytes(args));
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  const double flops = 2.0 * 128 * shape.heads * pairs;
  const char* type = dtype == IndexerDtype::bf16 ? "bf16" : "e4m3";
  char label[160];
  std::snprintf(label, sizeof label, "%s s %lld n %lld Hi %d K %d%s", type, static_cast<long long>(shape.queries),
                static_cast<long long>(shape.keys), shape.heads, shape.topk, shape.causal ? " causal" : "");
  in.fill(Pattern::random, base_seed);
  const auto launch = [&] { CUDA_OK(detail::sm90::launch_indexer(args, nullptr)); };
  const Timing random = time_runs(launch, runs);
  if (!shape.causal) check_rounding(in, out, shape.topk, std::string("random ") + label);
  const Timing bare = time_runs([&] { CUDA_OK(detail::sm90::launch_indexer_scores_only(args, nullptr)); }, runs);
  Timing ascending{0, 0, 0}, equal{0, 0, 0};
  if (patterns) {
    in.fill(Pattern::ascending, base_seed);
    ascending = time_runs(launch, std::max(5, runs / 3));
    in.fill(Pattern::equal, base_seed);
    equal = time_runs(launch, std::max(5, runs / 3));
  }
  out.attach(args, true);
  std::printf(
      "%-44s %8.3f ms [%.3f, %.3f] %6.1f TFLOP/s | bare %8.3f ms %6.1f | top-k %4.1f %% | ascending x%.2f equal "
      "x%.2f | scratch %.0f MB\n",
      label, random.median, random.low, random.high, flops / random.median * 1e-9, bare.median,
      flops / bare.median * 1e-9, 100 * (random.median - bare.median) / random.median, ascending.median / random.median,
      equal.median / random.median, static_cast<double>(scratch.bytes()) * 1e-6);
  std::fflush(stdout);
  if (json != nullptr) {
    std::fprintf(json,
                 "{\"case\": \"%s\", \"ms\": %.4f, \"low\": %.4f, \"high\": %.4f, \"tflops\": %.1f, \"bare_ms\": %.4f, "
                 "\"ascending_ms\": %.4f, \"equal_ms\": %.4f, \"scratch_bytes\": %zu, \"runs\": %d, \"seed\": %llu}\n",
                 label, random.median, random.low, random.high, flops / random.median * 1e-9, bare.median,
                 ascending.median, equal.median, scratch.bytes(), runs, static_cast<unsigned long long>(base_seed));
  }
}

int usage() {
  std::printf(
      "indexer_bench [--check] [--bench] [--quick] [--heads LIST] [--dtype bf16|e4m3] [--runs N] [--seed N] [--json "
      "FILE]\n"
      "              [--one QUERIES,KEYS,HEADS,TOPK]\n"
      "Checks the indexer with fused top-k against independent references and times it on 4096 queries x 65536 keys.\n"
      "Without --check or --bench it does both; --quick times one shape only. --one launches one shape once, for a "
      "profiler.\n");
  return 0;
}

int main_with(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 4096);
  bool check = false, timing = false, quick = false;
  std::vector<int> heads = {64};
  std::vector<IndexerDtype> dtypes = {IndexerDtype::bf16, IndexerDtype::e4m3};
  int runs = 21;
  FILE* json = nullptr;
  std::string one;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--help") return usage();
    if (arg == "--check") {
      check = true;
      continue;
    }
    if (arg == "--quick") {
      quick = timing = true;
      continue;
    }
    if (arg == "--bench") {
      timing = true;
      continue;
    }
    ++i;
    if (arg == "--heads") {
      heads.clear();
      for (std::size_t at = 0; at < value.size();) {
        heads.push_back(std::atoi(value.c_str() + at));
        at = std::min(value.find(',', at), value.size() - 1) + 1;
      }
    } else if (arg == "--dtype") {
      dtypes = {value == "bf16" ? IndexerDtype::bf16 : IndexerDtype::e4m3};
    } else if (arg == "--runs") {
      runs = std::atoi(value.c_str());
    } else if (arg == "--seed") {
      base_seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (arg == "--json") {
      json = std::fopen(value.c_str(), "w");
    } else if (arg == "--one") {
      one = value;
    } else {
      usage();
      return 3;
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(base_seed));
  if (!one.empty()) {
    Shape shape{4096, 65536, 64, 2048};
    long long s = 0, n = 0;
    if (std::sscanf(one.c_str(), "%lld,%lld,%d,%d", &s, &n, &shape.heads, &shape.topk) == 4) {
      shape.queries = s;
      shape.keys = n;
    }
    for (const IndexerDtype dtype : dtypes) bench(dtype, shape, 1, nullptr, false);
    return failures != 0;
  }
  if (!check && !timing) check = timing = true;
  if (check) {
    check_selection();
    check_graph();
    for (const int hi : heads) {
      for (const IndexerDtype dtype : dtypes) check_exact(dtype, hi);
      for (const IndexerDtype dtype : dtypes) {
        check_metamorphic(dtype, hi);
        check_same_everywhere(dtype, hi);
      }
      check_pieces(hi);
      std::printf("exact scores Hi %d: done, %d failures so far\n", hi, failures);
    }
  }
  if (timing) {
    for (const IndexerDtype dtype : dtypes) {
      for (const int hi : heads) bench(dtype, {4096, 65536, hi, 2048}, runs, json, !quick);
      if (quick) continue;
      bench(dtype, {32768, 65536, heads[0], 2048, true}, std::max(3, runs / 7), json, false);
      bench(dtype, {4096, 8192, heads[0], 2048}, runs, json, false);
      bench(dtype, {256, 65536, heads[0], 2048}, runs, json, false);
    }
  }
  if (json != nullptr) std::fclose(json);
  std::printf("%s: %d failures\n", failures == 0 ? "passed" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) { return tandem::test::main_with(argc, argv); }
