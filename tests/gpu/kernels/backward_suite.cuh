// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_checks.cuh"

/// All cases of the sparse backward's checks.
namespace tandem::test {

/// Few rows, far apart: offsets in bytes and in elements pass 2^32, of queries, keys and dkv.
inline void check_large_offsets(int heads, std::uint64_t seed) {
  constexpr std::int64_t stride = std::int64_t{1} << 30;  // elements between rows of q, dout, out and dq
  constexpr std::int64_t far = 4'000'000;                 // dkv: 9.2 GB
  BackwardCase c{.name = "offsets past 2^32", .heads = heads, .topk = 64, .queries = 3, .keys = 200, .full = true};
  const BackwardData d = make_data(c, seed);
  const BackwardTruth truth = find_truth(c, d);
  const auto dim = static_cast<std::size_t>(c.dim), width = static_cast<std::size_t>(heads);
  const auto spread_rows = [&](DeviceArray<std::uint16_t>& to, const std::vector<std::uint16_t>& from,
                               std::size_t row) {
    for (std::int64_t t = 0; t < c.queries; ++t) {
      CUDA_OK(cudaMemcpy(to.data() + t * stride, from.data() + static_cast<std::size_t>(t) * row, row * 2,
                         cudaMemcpyHostToDevice));
    }
  };
  const auto room = [&](std::size_t row) { return static_cast<std::size_t>((c.queries - 1) * stride) + row; };
  DeviceArray<std::uint16_t> q(room(width * dim)), dq(room(width * dim)), dout(room(width * 512)),
      out(room(width * 512));
  spread_rows(q, d.q, width * dim);
  spread_rows(dout, d.dout, width * 512);
  spread_rows(out, d.out, width * 512);
  DeviceArray<std::uint16_t> kv(static_cast<std::size_t>(far) * dim);
  DeviceArray<float> dkv(static_cast<std::size_t>(far) * dim), lse(d.lse);
  const std::size_t first = static_cast<std::size_t>(far - c.keys) * dim;
  CUDA_OK(cudaMemcpy(kv.data() + first, d.kv.data(), d.kv.size() * 2, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(dkv.data() + first, d.dkv.data(), d.dkv.size() * 4, cudaMemcpyHostToDevice));
  std::vector<std::int32_t> rows = d.lists;
  for (std::int32_t& entry : rows) entry += static_cast<std::int32_t>(far - c.keys);
  DeviceArray<std::int32_t> lists(rows), length(d.length);
  SparseBackwardArgs args;
  args.heads = heads;
  args.topk = c.topk;
  args.scale = c.scale();
  args.queries = args.row_end = c.queries;
  args.keys = far;
  args.q = q.data();
  args.kv = kv.data();
  args.dout = dout.data();
  args.out = out.data();
  args.dq = dq.data();
  args.q_row_stride = args.dout_row_stride = args.out_row_stride = args.dq_row_stride = stride;
  args.indices = lists.data();
  args.length = length.data();
  args.lse = lse.data();
  args.dkv = dkv.data();
  DeviceArray<std::uint8_t> workspace(sparse_backward_workspace_bytes(args));
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  CUDA_OK(detail::sm90::launch_sparse_backward(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  Against queries, keys;
  std::vector<std::uint16_t> row(width * dim);
  for (std::int64_t t = 0; t < c.queries; ++t) {
    CUDA_OK(cudaMemcpy(row.data(), dq.data() + t * stride, row.size() * 2, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(t) * row.size() + i;
      queries.add(static_cast<double>(wide(row[i])), truth.dq[at], truth.plain_dq[at]);
    }
  }
  std::vector<float> found(d.dkv.size());
  CUDA_OK(cudaMemcpy(found.data(), dkv.data() + first, found.size() * 4, cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < found.size(); ++i) {
    keys.add(static_cast<double>(found[i]), truth.dkv[i], truth.plain_dkv[i]);
  }
  queries.report(describe(c), "dq", true);
  keys.report(describe(c), "dkv", true);
}

/// What the launcher does without touching memory.
inline void check_arguments() {
  const auto refused = [](const std::string& what, auto change) {
    SparseBackwardArgs args;
    args.heads = 64;
    args.topk = 64;
    args.queries = args.row_end = 1;
    args.workspace_bytes = sparse_backward_workspace_bytes(args, 1);
    change(args);
    const bool good = detail::sm90::launch_sparse_backward(args, nullptr) == cudaErrorInvalidValue;
    backward_report(good, what, good ? "" : "was not refused");
  };
  refused("no heads", [](SparseBackwardArgs& args) { args.heads = 0; });
  refused("129 heads", [](SparseBackwardArgs& args) { args.heads = 129; });
  refused("d of 640", [](SparseBackwardArgs& args) { args.dim = 640; });
  refused("K of 100", [](SparseBackwardArgs& args) { args.topk = 100; });
  refused("K of 8256", [](SparseBackwardArgs& args) { args.topk = 8256; });
  refused("rows that there are not", [](SparseBackwardArgs& args) { args.row_end = 2; });
  refused("rows from behind their end", [](SparseBackwardArgs& args) { args.row_begin = 2; });
  refused("workspace for less than a row", [](SparseBackwardArgs& args) { --args.workspace_bytes; });
  SparseBackwardArgs nothing;
  nothing.heads = 64;
  nothing.topk = 64;
  backward_report(detail::sm90::launch_sparse_backward(nothing, nullptr) == cudaSuccess, "no rows");
}

inline void check_backward(std::uint64_t& seed, const std::vector<int>& all_heads, bool quick) {
  check_arguments();
  for (const int heads : all_heads) {
    const int before = backward_failures;
    for (const int dim : quick ? std::vector<int>{576} : std::vector<int>{576, 512}) {
      const BackwardCase base{.heads = heads, .dim = dim};
      const auto next = [&](auto change, bool quiet = true) {
        BackwardCase c = base;
        change(c);
        check_case(c, ++seed, quiet);
      };
      next([](BackwardCase& c) { c.queries = 1, c.full = true; });
      next([](BackwardCase& c) { c.topk = 192, c.queries = 26; }, false);
      next([](BackwardCase& c) { c.topk = 256, c.queries = 40, c.sink = c.holes = c.strided = c.part = true; });
      next([](BackwardCase& c) { c.topk = 320, c.queries = 14, c.spread = 80.0F, c.sink = c.hot = true; });
      next([](BackwardCase& c) { c.topk = 192, c.queries = 45, c.deterministic = c.sink = c.part = c.hot = true; });
      // More rows than the ordered pass looks through at a time.
      next([](BackwardCase& c) { c.topk = 64, c.queries = 600, c.deterministic = true; });
      if (!quick) {
        next([](BackwardCase& c) { c.topk = 128, c.queries = 300, c.keys = 3000, c.hot = true; });
        next([](BackwardCase& c) { c.topk = 640, c.queries = 9, c.visit = 3, c.full = true; });
        next([](BackwardCase& c) { c.topk = 2048, c.queries = 5, c.keys = 5000, c.holes = true; });
      }
      check_one_hot(heads, dim, ++seed);
      check_histogram(heads, dim, ++seed);
    }
    if (!quick && heads == 64) {
      check_case({.name = "long", .heads = heads, .topk = 8192, .queries = 2, .keys = 20000, .full = true}, ++seed);
    }
    std::printf("H %d: %d failures\n", heads, backward_failures - before);
  }
  if (!quick) check_large_offsets(128, ++seed);
}

}  // namespace tandem::test
