// SPDX-License-Identifier: Apache-2.0
#include "forward_checks.cuh"

namespace tandem::test {
namespace {

struct Shape {
  int heads;
  std::int64_t queries, keys;
  Lists lists = Lists::random;
  int topk = 2048, dim = 576;
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
  const auto launch = [&] { CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr)); };
  const Times times = time_launches(launch, runs);
  const double ms = times.median;
  const double entries = static_cast<double>(shape.queries) * shape.topk;
  const int head_blocks = shape.heads > 64 ? (shape.heads + 63) / 64 : 1;
  const double tflops = 2.0 * shape.heads * (shape.dim + 512) * entries / ms * 1e-9;
  const double gather = 2.0 * shape.dim * entries * head_blocks / ms * 1e-9;
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
              shape.topk, name_of(shape.lists), ms, times.low, times.high, tflops, gather);
  return {{"heads", std::int64_t{shape.heads}},
          {"dim", std::int64_t{shape.dim}},
          {"queries", shape.queries},
          {"keys", shape.keys},
          {"topk", std::int64_t{shape.topk}},
          {"lists", std::string(name_of(shape.lists))},
          {"ms", ms},
          {"low", times.low},
          {"high", times.high},
          {"tflops", tflops},
          {"gather_tb_s", gather}};
}

std::vector<Shape> shapes_of(const KernelProgram& program) {
  std::vector<Shape> shapes;
  const auto one_each = [&](const std::vector<int>& heads, std::int64_t keys, Lists lists = Lists::random) {
    for (const int h : heads) shapes.push_back({h, 4096, keys, lists});
  };
  if (program.quick) {
    one_each(program.heads.empty() ? std::vector<int>{128, 64, 16} : program.heads, 65536);
    return shapes;
  }
  one_each({128, 64, 32, 16, 8}, 65536);
  one_each({128, 64, 32, 16, 8}, 8192);
  one_each({128, 64, 16}, 65536, Lists::ascending);
  one_each({128, 64, 16}, 65536, Lists::local);
  shapes.push_back({128, 8192, 131072});
  shapes.push_back({16, 8192, 131072});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 2048, 512});
  shapes.push_back({128, 4096, 65536, Lists::ascending, 512});
  return shapes;
}

int main_with(const KernelProgram& program) {
  CUDA_OK(detail::sm90::load_sparse_forward_kernels());
  std::uint64_t seed = program.seed;
  if (program.check) {
    check_forward(seed, program.heads.empty() ? std::vector<int>{8, 16, 32, 64, 128, 1, 24, 100} : program.heads);
  }
  std::vector<Figure> figures;
  if (program.bench) {
    for (const Shape& shape : shapes_of(program)) figures.push_back(bench(shape, program.runs, ++seed));
  }
  write_figures(program, device_name(), forward_failures, figures);
  std::printf("%s: %d failures\n", forward_failures == 0 ? "passed" : "FAILED", forward_failures);
  return forward_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) {
  using namespace tandem::test;
  const char* const about =
      "Checks the sparse MLA forward against float64, and times it. --quick times 4096 queries and 65536 rows in "
      "random "
      "order only; --heads are those of the checks, and of these times.";
  return main_with(parse_kernel_program(argc, argv, about));
}
