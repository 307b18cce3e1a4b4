// SPDX-License-Identifier: Apache-2.0
#include "loss_suite.cuh"

namespace tandem::test {
namespace {

struct Shape {
  int heads;
  bool e4m3 = false;
  std::int64_t queries = 4096, keys = 65536;
  Lists lists = Lists::ascending;
  int topk = 2048;
  bool gradients = true;
};

__global__ void fill_codes_kernel(std::uint8_t* to, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const std::uint64_t r = mix(seed, i);
    to[i] = static_cast<std::uint8_t>((r >> 32 & 1) << 7 | (5 + r % 3) << 3 | (r >> 40 & 7));
  }
}
void fill(std::uint8_t* to, std::size_t count, bool e4m3, std::uint64_t seed) {
  if (!e4m3) return fill_normal(reinterpret_cast<__nv_bfloat16*>(to), count, 1.0F, seed);
  fill_codes_kernel<<<1024, 256>>>(to, count, seed);
  CUDA_OK(cudaGetLastError());
}

/// `how` of an index, on all cores.
template <typename How>
std::vector<float> made(std::size_t count, const How& how) {
  std::vector<float> values(count);
  parallel(64, [&](std::size_t part) {
    for (std::size_t i = count * part / 64; i < count * (part + 1) / 64; ++i) values[i] = how(i);
  });
  return values;
}

template <typename T>
std::vector<T> fetched(const void* from, std::size_t at, std::size_t count) {
  std::vector<T> values(count);
  CUDA_OK(cudaMemcpy(values.data(), static_cast<const T*>(from) + at, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

/// Loss and gradients of some rows, but for d_index_k, against float64.
void check_rows(const IndexerLossArgs& args, const Shape& shape, const std::vector<std::int32_t>& lists) {
  LossCase c{.name = "timed shape", .heads = shape.heads, .topk = shape.topk, .e4m3 = shape.e4m3, .queries = 1};
  // The row's own keys, one after the other, are all that the oracle has.
  c.keys = shape.topk;
  c.loss_scale = args.loss_scale;
  c.upstream = args.upstream;
  const std::size_t heads = static_cast<std::size_t>(shape.heads), topk = static_cast<std::size_t>(shape.topk),
                    row_bytes = shape.e4m3 ? 128 : 256;
  for (const std::int64_t row : {std::int64_t{0}, shape.queries / 2 + 1, shape.queries - 1}) {
    const auto t = static_cast<std::size_t>(row);
    LossData d;
    d.q = fetched<std::uint8_t>(args.q, t * heads * row_bytes, heads * row_bytes);
    d.w = fetched<float>(args.w, t * heads, heads);
    d.head_sums = fetched<float>(args.head_sums, t * topk, topk);
    for (std::size_t i = 0; i < topk; ++i) {
      const auto key = static_cast<std::size_t>(lists[t * topk + i]);
      const auto bytes = fetched<std::uint8_t>(args.k, key * row_bytes, row_bytes);
      d.k.insert(d.k.end(), bytes.begin(), bytes.end());
      d.scale.push_back(shape.e4m3 ? fetched<float>(args.k_scale, key, 1)[0] : 1.0F);
      d.lists.push_back(static_cast<std::int32_t>(i));
    }
    d.length = {shape.topk};
    d.d_index_k.assign(topk * 128, 0.0F);
    const LossTruth truth = find_loss_truth(c, d);
    check_loss(c, truth, fetched<double>(args.loss, t, 1), "timed shape", true);
    if (!shape.gradients) continue;
    std::vector<double> dq;
    if (shape.e4m3) {
      for (const float x : fetched<float>(args.d_index_q, t * heads * 128, heads * 128)) {
        dq.push_back(static_cast<double>(x));
      }
    } else {
      for (const std::uint16_t x : fetched<std::uint16_t>(args.d_index_q, t * heads * 128, heads * 128)) {
        dq.push_back(static_cast<double>(wide(x)));
      }
    }
    check_gradient("timed shape", "d_index_q", dq, truth.dq, truth.plain_dq, truth.doubt_dq,
                   shape.e4m3 ? almost_exact(c) : INFINITY, true);
    const auto dw = fetched<float>(args.d_index_w, t * heads, heads);
    check_gradient("timed shape", "d_index_w", {dw.begin(), dw.end()}, truth.dw, std::vector<double>(heads, INFINITY),
                   std::vector<double>(heads, 0.0), almost_exact(c), true);
  }
}

Figure bench(const Shape& shape, int runs, std::uint64_t seed) {
  const auto pairs = static_cast<std::size_t>(shape.queries * shape.heads), keys = static_cast<std::size_t>(shape.keys),
             entries = static_cast<std::size_t>(shape.queries * shape.topk);
  const std::size_t width = shape.e4m3 ? 1 : 2;
  DeviceArray<std::uint8_t> q(pairs * 128 * width), k(keys * 128 * width), dq(pairs * 128 * (shape.e4m3 ? 4 : 2));
  fill(q.data(), pairs * 128, shape.e4m3, seed);
  fill(k.data(), keys * 128, shape.e4m3, seed + 1);
  const float usual = 1.0F / (8.0F * std::sqrt(static_cast<float>(shape.heads)));
  DeviceArray<float> w(made(pairs, [&](std::size_t i) { return normal(seed + 2, i) * usual; }));
  DeviceArray<float> scale(
      made(keys, [&](std::size_t i) { return 0.5F + static_cast<float>(mix(seed + 3, i) % 1024) / 1024.0F; }));
  DeviceArray<float> head_sums(
      made(entries, [&](std::size_t i) { return static_cast<float>(mix(seed + 4, i) >> 40) / 16777216.0F; }));
  DeviceArray<float> dw(pairs), dk(keys * 128);
  DeviceArray<double> loss(static_cast<std::size_t>(shape.queries));
  CUDA_OK(cudaMemset(dk.data(), 0, dk.bytes()));
  const auto host_lists = make_lists(shape.lists, shape.queries, shape.keys, shape.topk, seed + 5);
  DeviceArray<std::int32_t> lists(host_lists);
  DeviceArray<std::int32_t> length(std::vector<std::int32_t>(static_cast<std::size_t>(shape.queries), shape.topk));
  IndexerLossArgs args;
  args.e4m3 = shape.e4m3;
  args.heads = shape.heads;
  args.topk = shape.topk;
  args.keys = shape.keys;
  args.row_end = shape.queries;
  args.q = q.data();
  args.w = w.data();
  args.k = k.data();
  args.k_scale = shape.e4m3 ? scale.data() : nullptr;
  args.indices = lists.data();
  args.length = length.data();
  args.head_sums = head_sums.data();
  args.loss_scale = 1.0 / static_cast<double>(shape.queries);
  args.loss = loss.data();
  if (shape.gradients) {
    args.d_index_q = dq.data();
    args.d_index_w = dw.data();
    args.d_index_k = dk.data();
  }
  const Times times = time_launches([&] { CUDA_OK(detail::sm90::launch_indexer_loss(args, nullptr)); }, runs);
  check_rows(args, shape, host_lists);
  // What L2 adds, at 3.7 TB/s; if only the loss is wanted, what it gives, at 8.6 TB/s.
  const double floor =
      static_cast<double>(entries) * (shape.gradients ? 512 / 3.7e9 : 128 * static_cast<double>(width) / 8.6e9);
  const double products = shape.gradients ? (shape.e4m3 ? 6 : 5) : 1;
  const double tflops = products * 2 * 128 * shape.heads * static_cast<double>(entries) / times.median * 1e-9;
  std::printf(
      "Hi %2d %s s %5lld n %6lld K %d %-9s %-9s %8.3f ms [%.3f, %.3f], floor %.3f ms, %.2f of it; %.0f TFLOP/s done\n",
      shape.heads, shape.e4m3 ? "e4m3" : "bf16", static_cast<long long>(shape.queries),
      static_cast<long long>(shape.keys), shape.topk, name_of(shape.lists), shape.gradients ? "gradients" : "loss",
      times.median, times.low, times.high, floor, floor / times.median, tflops);
  return {{"heads", std::int64_t{shape.heads}},
          {"dtype", std::string(shape.e4m3 ? "e4m3" : "bf16")},
          {"queries", shape.queries},
          {"keys", shape.keys},
          {"topk", std::int64_t{shape.topk}},
          {"lists", std::string(name_of(shape.lists))},
          {"gradients", shape.gradients},
          {"ms", times.median},
          {"low", times.low},
          {"high", times.high},
          {"floor_ms", floor},
          {"tflops_done", tflops}};
}

std::vector<Shape> shapes_of(bool quick, const std::vector<int>& heads) {
  std::vector<Shape> shapes;
  for (const int h : heads.empty() ? std::vector<int>{64, 32, 16, 8} : heads) {
    for (const bool e4m3 : {false, true}) {
      shapes.push_back({h, e4m3});
      if (!quick) shapes.push_back({.heads = h, .e4m3 = e4m3, .gradients = false});
    }
  }
  if (quick) return shapes;
  for (const int h : {64, 16}) {
    shapes.push_back({.heads = h, .keys = 8192});
    shapes.push_back({.heads = h, .lists = Lists::local});
    shapes.push_back({.heads = h, .keys = 131072});
    shapes.push_back({.heads = h, .topk = 512});
  }
  shapes.push_back({.heads = 64, .queries = 1024, .topk = 8192});
  shapes.push_back({.heads = 64, .queries = 128});
  return shapes;
}

int main_with(const KernelProgram& program) {
  CUDA_OK(detail::sm90::load_indexer_loss_kernels());
  std::uint64_t seed = program.seed;
  if (program.check) {
    check_indexer_loss(seed, program.heads.empty() ? std::vector<int>{64, 32, 16, 8} : program.heads, program.quick);
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
      "Checks the sparse indexer loss and its gradients against float64, and times them. --quick checks less, and "
      "times "
      "the gradients of 4096 queries and 65536 keys only; --heads are those of the checks, and of these times.";
  return main_with(parse_kernel_program(argc, argv, about));
}
