// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <string>

#include "indexer_metamorphic.cuh"

namespace tandem::test {
namespace {

struct Shape {
  std::int64_t queries, keys;
  int heads, topk;
  bool causal = false;  ///< row t sees keys up to its own place at the end of the keys
};

Figure bench(IndexerDtype dtype, const Shape& shape, int runs, bool patterns) {
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
  const Times random = time_launches(launch, runs);
  if (!shape.causal) check_rounding(in, out, shape.topk, std::string("random ") + label);
  const Times bare = time_launches([&] { CUDA_OK(detail::sm90::launch_indexer_scores_only(args, nullptr)); }, runs);
  Times ascending{0, 0, 0}, equal{0, 0, 0};
  if (patterns) {
    in.fill(Pattern::ascending, base_seed);
    ascending = time_launches(launch, std::max(5, runs / 3));
    in.fill(Pattern::equal, base_seed);
    equal = time_launches(launch, std::max(5, runs / 3));
  }
  out.attach(args, true);
  std::printf(
      "%-44s %8.3f ms [%.3f, %.3f] %6.1f TFLOP/s | bare %8.3f ms %6.1f | top-k %4.1f %% | ascending x%.2f equal "
      "x%.2f | scratch %.0f MB\n",
      label, random.median, random.low, random.high, flops / random.median * 1e-9, bare.median,
      flops / bare.median * 1e-9, 100 * (random.median - bare.median) / random.median, ascending.median / random.median,
      equal.median / random.median, static_cast<double>(scratch.bytes()) * 1e-6);
  std::fflush(stdout);
  return {{"case", std::string(label)},
          {"ms", random.median},
          {"low", random.low},
          {"high", random.high},
          {"tflops", flops / random.median * 1e-9},
          {"bare_ms", bare.median},
          {"ascending_ms", ascending.median},
          {"equal_ms", equal.median},
          {"scratch_bytes", static_cast<std::int64_t>(scratch.bytes())},
          {"runs", std::int64_t{runs}}};
}

void check_all(const std::vector<IndexerDtype>& dtypes, const std::vector<int>& heads) {
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

std::vector<Figure> bench_all(const KernelProgram& program, const std::vector<IndexerDtype>& dtypes,
                              const std::vector<int>& heads) {
  std::vector<Figure> figures;
  for (const IndexerDtype dtype : dtypes) {
    for (const int hi : heads) figures.push_back(bench(dtype, {4096, 65536, hi, 2048}, program.runs, !program.quick));
    if (program.quick) continue;
    figures.push_back(bench(dtype, {32768, 65536, heads[0], 2048, true}, std::max(3, program.runs / 7), false));
    figures.push_back(bench(dtype, {4096, 8192, heads[0], 2048}, program.runs, false));
    figures.push_back(bench(dtype, {256, 65536, heads[0], 2048}, program.runs, false));
  }
  return figures;
}

/// Returns the exit code.
int launch_one(const std::string& text, const std::vector<IndexerDtype>& dtypes) {
  Shape shape{};
  long long queries = 0, keys = 0;
  if (std::sscanf(text.c_str(), "%lld,%lld,%d,%d", &queries, &keys, &shape.heads, &shape.topk) != 4) {
    std::printf("--one: '%s' is not QUERIES,KEYS,HEADS,TOPK\n", text.c_str());
    return 3;
  }
  shape.queries = queries;
  shape.keys = keys;
  for (const IndexerDtype dtype : dtypes) bench(dtype, shape, 1, false);
  return failures == 0 ? 0 : 1;
}

int main_with(const KernelProgram& program) {
  base_seed = program.seed;
  const std::vector<int> heads = program.heads.empty() ? std::vector<int>{64} : program.heads;
  std::vector<IndexerDtype> dtypes = {IndexerDtype::bf16, IndexerDtype::e4m3};
  if (!program.dtype.empty()) dtypes = {program.dtype == "bf16" ? IndexerDtype::bf16 : IndexerDtype::e4m3};
  if (!program.one.empty()) return launch_one(program.one, dtypes);
  if (program.check) check_all(dtypes, heads);
  std::vector<Figure> figures;
  if (program.bench) figures = bench_all(program, dtypes, heads);
  write_figures(program, device_name(), failures, figures);
  std::printf("%s: %d failures\n", failures == 0 ? "passed" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) {
  using namespace tandem::test;
  const char* const about =
      "Checks the indexer with fused top-k against independent references, and times it on 4096 queries and 65536 "
      "keys. "
      "--quick times one shape of each type only.";
  constexpr bool of_indexer = true;
  return main_with(parse_kernel_program(argc, argv, about, of_indexer));
}
