// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "indexer_cases.cuh"

/// The indexer's checks: selection on given scores, exact scores, float64 scores within rounding, graph replays.
namespace tandem::test {

inline int failures = 0;
inline std::uint64_t base_seed = 0;  ///< of the data: the program's

inline void report(bool good, const std::string& name, const std::string& detail = "") {
  if (!good) ++failures;
  if (!good || !detail.empty()) std::printf("%-5s %s %s\n", good ? "ok" : "WRONG", name.c_str(), detail.c_str());
}

struct Bounds {
  std::vector<std::int32_t> begin, end;
};

/// Rows that see everything, and rows that see few keys, none, K - 1, K, K + 1, odd parts.
inline Bounds make_bounds(std::int64_t queries, std::int64_t keys, int topk, std::uint64_t seed, bool whole) {
  Bounds bounds;
  for (std::int64_t t = 0; t < queries; ++t) {
    std::int64_t begin = 0, end = keys;
    if (!whole) {
      const std::int64_t counts[] = {keys, 0, 1, topk - 1, topk, topk + 1, topk + 63, 2 * topk + 1, keys / 2, 65};
      const std::int64_t count = std::min<std::int64_t>(counts[mix(seed, t) % 10], keys);
      begin = static_cast<std::int64_t>(mix(seed + 9, t) % static_cast<std::uint64_t>(keys - count + 1));
      end = begin + count;
    }
    bounds.begin.push_back(static_cast<std::int32_t>(begin));
    bounds.end.push_back(static_cast<std::int32_t>(end));
  }
  return bounds;
}

/// How the rows reach their lists: one launch, or two steps over alternating key ranges with carried state.
enum class Steps { one, two };

struct RunOptions {
  int topk = 64;
  bool relu = true;
  bool lse = false;
  Steps steps = Steps::one;
  bool subset = false;  ///< every third row only, through `rows`
};

/// Runs and returns false if something beside the lists is off; lists of untouched rows must stay poisoned.
inline void run(IndexerArgs args, const Bounds& bounds, const RunOptions& o, Outputs& out, const std::string& name) {
  DeviceArray<std::int32_t> begin(bounds.begin), end(bounds.end);
  args.key_begin = begin.data();
  args.key_end = end.data();
  args.topk = o.topk;
  args.relu = o.relu;
  out.attach(args, o.lse);
  std::vector<std::int32_t> rows;
  for (std::int32_t t = 0; t < args.queries; ++t) {
    if (!o.subset || t % 3 == 1) rows.push_back(t);
  }
  DeviceArray<std::int32_t> row_list(rows);
  args.row_count = static_cast<std::int32_t>(rows.size());
  if (o.subset) args.rows = row_list.data();
  DeviceArray<std::uint8_t> scratch(detail::sm90::indexer_scratch_bytes(args));
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  if (o.steps == Steps::one) {
    CUDA_OK(detail::sm90::launch_indexer(args, nullptr));
  } else {
    std::vector<std::int32_t> ranges[2];
    int which = 1;
    for (std::int64_t at = 0; at < args.keys;) {
      const auto size = static_cast<std::int64_t>(mix(base_seed, at) % 3000 + 1);
      const std::int64_t stop = std::min(args.keys, at + size);
      ranges[which].push_back(static_cast<std::int32_t>(at));
      ranges[which].push_back(static_cast<std::int32_t>(stop));
      which ^= 1;
      at = stop;
    }
    const auto entries = rows.size() * static_cast<std::size_t>(o.topk);
    DeviceArray<float> scores(entries);
    DeviceArray<std::int32_t> indices(entries), length(rows.size());
    args.state_scores = scores.data();
    args.state_indices = indices.data();
    args.state_length = length.data();
    for (int step = 0; step < 2; ++step) {
      DeviceArray<std::int32_t> list(ranges[step]);
      args.key_ranges = list.data();
      args.key_range_count = static_cast<std::int32_t>(ranges[step].size() / 2);
      args.first = step == 0;
      args.last = step == 1;
      CUDA_OK(detail::sm90::launch_indexer(args, nullptr));
      CUDA_OK(cudaDeviceSynchronize());
    }
    report(scores.red_zone_intact() && indices.red_zone_intact() && length.red_zone_intact(), name, "");
  }
  CUDA_OK(cudaDeviceSynchronize());
  report(scratch.red_zone_intact() && out.red_zones_intact(), name + " red zones");
}

/// Lists against those of given float scores, row by row, entry by entry.
inline void compare(const std::vector<float>& scores, std::int64_t keys, const Bounds& bounds, const RunOptions& o,
                    const Outputs& out, const std::string& name) {
  const auto indices = out.indices.get();
  const auto length = out.length.get();
  const auto lse = out.lse.get();
  const auto queries = static_cast<std::int64_t>(bounds.begin.size());
  std::vector<std::int64_t> wrong(static_cast<std::size_t>(queries)), nans(static_cast<std::size_t>(queries));
  std::vector<double> lse_error(static_cast<std::size_t>(queries));
  parallel(static_cast<std::size_t>(queries), [&](std::size_t t) {
    const std::int32_t* list = indices.data() + t * static_cast<std::size_t>(o.topk);
    if (o.subset && t % 3 != 1) {
      for (int i = 0; i < o.topk; ++i) wrong[t] += static_cast<std::uint32_t>(list[i]) != 0xABABABAB;
      return;
    }
    const float* row = scores.data() + t * static_cast<std::size_t>(keys);
    const auto expected = expected_list(row, bounds.begin[t], bounds.end[t], o.topk);
    if (length[t] != static_cast<std::int32_t>(expected.size())) ++wrong[t];
    for (std::size_t i = 0; i < static_cast<std::size_t>(o.topk); ++i) {
      wrong[t] += list[i] != (i < expected.size() ? expected[i] : -1);
    }
    if (bounds.end[t] - bounds.begin[t] > o.topk) {
      for (std::int32_t j = bounds.begin[t]; j < bounds.end[t]; ++j) nans[t] += row[j] != row[j];
    }
    if (o.lse) {
      double top = -INFINITY, sum = 0;
      for (const std::int32_t j : expected) {
        if (row[j] == row[j]) top = std::max<double>(top, row[j]);
      }
      for (const std::int32_t j : expected) {
        if (row[j] == row[j]) sum += std::exp(row[j] - top);
      }
      const double want = expected.empty() || std::isinf(top) ? top : top + std::log(sum);
      const double error = want == lse[t] ? 0.0 : std::abs(want - lse[t]) / (1.0 + std::abs(want));
      lse_error[t] = error == error ? error : 1.0;
    }
  });
  std::int64_t total = 0, rows = 0, nan_total = 0;
  double worst_lse = 0;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    total += wrong[t];
    rows += wrong[t] != 0;
    nan_total += nans[t];
    worst_lse = std::max(worst_lse, lse_error[t]);
  }
  const std::int64_t counted = out.nans.get()[0];
  const bool good = total == 0 && counted == nan_total && worst_lse < 1e-6;
  report(good, name,
         good
             ? ""
             : std::to_string(total) + " entries of " + std::to_string(rows) + " rows, NaN " + std::to_string(counted) +
                   " for " + std::to_string(nan_total) + ", lse error " + std::to_string(worst_lse));
}

// ------------------------------------------------------------------------------------------------- selection alone

inline std::vector<float> score_matrix(const std::string& kind, std::int64_t queries, std::int64_t keys,
                                       std::uint64_t seed) {
  std::vector<float> m(static_cast<std::size_t>(queries * keys));
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t t = 0; t < queries; ++t) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto at = static_cast<std::size_t>(t * keys + j);
      const std::uint64_t r = mix(seed + static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(j));
      float& x = m[at];
      if (kind == "random") x = normal(seed, at);
      if (kind == "equal") x = 3.25F;
      if (kind == "ascending") x = static_cast<float>(j - keys / 2) * 0.37F;
      if (kind == "descending") x = static_cast<float>(keys / 3 - j) * 0.37F;
      if (kind == "low bits") {
        const std::uint32_t bits = 0x42280000U | static_cast<std::uint32_t>(r & 1023U);
        std::memcpy(&x, &bits, 4);
      }
      if (kind == "plateau") x = r % 100 == 0 ? normal(seed, at) : (r & 128U) != 0 ? 0.0F : -0.0F;
      if (kind == "nan") x = r % 3 == 0 ? nan : normal(seed, at);
      if (kind == "all nan") x = (r & 1U) != 0 ? nan : -nan;
      if (kind == "infinite") x = r % 50 == 0 ? inf : r % 3 == 0 ? -inf : r % 41 == 0 ? nan : normal(seed, at);
      if (kind == "minus infinite") x = -inf;
      if (kind == "one warp") x = (j / 16) % 8 == 3 ? 10.0F + normal(seed, at) : normal(seed, at);
      if (kind == "outlier") x = r % 5000 == 0 ? 1e30F : r % 5000 == 1 ? -1e30F : 1e-20F * normal(seed, at);
    }
  }
  return m;
}

inline void check_selection() {
  const std::vector<std::string> kinds = {"random", "equal",   "ascending", "descending",     "low bits", "plateau",
                                          "nan",    "all nan", "infinite",  "minus infinite", "one warp", "outlier"};
  for (const int topk : {64, 512, 2048, 8192}) {
    const std::int64_t queries = 37, keys = topk == 8192 ? 40001 : 20011;
    for (const std::string& kind : kinds) {
      const auto matrix = score_matrix(kind, queries, keys, base_seed + static_cast<std::uint64_t>(topk));
      DeviceArray<float> scores(matrix);
      for (const bool whole : {true, false}) {
        for (const Steps steps : {Steps::one, Steps::two}) {
          RunOptions o;
          o.topk = topk;
          o.steps = steps;
          o.lse = kind != "all nan" && (topk == 512 || topk == 64);
          o.subset = !whole && steps == Steps::two && topk == 512;
          const Bounds bounds = make_bounds(queries, keys, topk, base_seed + 77, whole);
          IndexerArgs args;
          args.dtype = IndexerDtype::scores;
          args.heads = 64;
          args.queries = queries;
          args.keys = keys;
          args.scores = scores.data();
          const std::string name = "selection " + kind + " K " + std::to_string(topk) + (whole ? " whole" : " parts") +
                                   (steps == Steps::two ? " two steps" : "");
          Outputs out(queries, topk);
          run(args, bounds, o, out, name);
          compare(matrix, keys, bounds, o, out, name);
        }
      }
    }
  }
  std::printf("selection on given scores: done, %d failures so far\n", failures);
}

// ------------------------------------------------------------------------------------------------- exact scores

inline std::vector<float> to_float(const std::vector<double>& from) { return {from.begin(), from.end()}; }

inline void check_exact(IndexerDtype dtype, int heads) {
  const std::int64_t queries = 600 / heads + 131, keys = 9001;
  Inputs in(dtype, queries, keys, heads);
  in.fill(Pattern::integers, base_seed + static_cast<std::uint64_t>(heads));
  std::vector<std::int32_t> rows(static_cast<std::size_t>(queries));
  std::iota(rows.begin(), rows.end(), 0);
  for (const bool relu : {true, false}) {
    const auto scores = to_float(reference_scores(in, rows, relu).scores);
    for (const int topk : {64, 1024}) {
      for (const bool whole : {true, false}) {
        for (const Steps steps : {Steps::one, Steps::two}) {
          RunOptions o;
          o.topk = topk;
          o.relu = relu;
          o.steps = steps;
          o.lse = !relu;
          o.subset = steps == Steps::two && whole;
          const Bounds bounds = make_bounds(queries, keys, topk, base_seed + 5, whole);
          IndexerArgs args;
          in.attach(args);
          const std::string name = std::string("whole numbers ") + (dtype == IndexerDtype::bf16 ? "bf16" : "e4m3") +
                                   " Hi " + std::to_string(heads) + " K " + std::to_string(topk) +
                                   (relu ? " relu" : " linear") + (whole ? " whole" : " parts") +
                                   (steps == Steps::two ? " two steps" : "");
          Outputs out(queries, topk);
          run(args, bounds, o, out, name);
          compare(scores, keys, bounds, o, out, name);
        }
      }
    }
  }
}

/// 24-bit scores from three bf16 pieces of a key, one head of weight 1: values that differ in their last bits only.
inline void check_pieces(int heads) {
  const std::int64_t queries = 40, keys = 20000;
  Inputs in(IndexerDtype::bf16, queries, keys, heads);
  std::vector<__nv_bfloat16> q(static_cast<std::size_t>(queries * heads * 128), __float2bfloat16(0.0F));
  std::vector<__nv_bfloat16> k(static_cast<std::size_t>(keys * 128), __float2bfloat16(0.0F));
  std::vector<float> w(static_cast<std::size_t>(queries * heads), 0.0F);
  for (std::int64_t t = 0; t < queries; ++t) {
    const std::int64_t head = t * 7 % heads;
    w[static_cast<std::size_t>(t * heads + head)] = t % 2 == 0 ? 1.0F : -1.0F;
    for (int d = 0; d < 3; ++d) q[static_cast<std::size_t>((t * heads + head) * 128 + 40 * d)] = __float2bfloat16(1.0F);
  }
  std::vector<float> scores(static_cast<std::size_t>(queries * keys));
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto bits = 0x800000U | static_cast<std::uint32_t>(mix(base_seed, static_cast<std::uint64_t>(j)) % 16384);
    float rest = static_cast<float>(bits);
    const float value = rest;
    for (int d = 0; d < 3; ++d) {
      // Truncation keeps every piece within the 24 bits.
      std::uint32_t word;
      std::memcpy(&word, &rest, 4);
      word &= 0xFFFF0000U;
      float piece;
      std::memcpy(&piece, &word, 4);
      k[static_cast<std::size_t>(j * 128 + 40 * d)] = __float2bfloat16(piece);
      rest -= piece;
    }
    for (std::int64_t t = 0; t < queries; ++t) {
      scores[static_cast<std::size_t>(t * keys + j)] = t % 2 == 0 ? value : -value;
    }
  }
  CUDA_OK(cudaMemcpy(in.q.data(), q.data(), q.size() * 2, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(in.k.data(), k.data(), k.size() * 2, cudaMemcpyHostToDevice));
  in.w.set(w);
  RunOptions o;
  o.topk = 2048;
  const Bounds bounds = make_bounds(queries, keys, o.topk, 1, true);
  IndexerArgs args;
  in.attach(args);
  Outputs out(queries, o.topk);
  const std::string name = "24-bit scores Hi " + std::to_string(heads);
  run(args, bounds, o, out, name);
  compare(scores, keys, bounds, o, out, name);
}

// ------------------------------------------------------------------------------------------------- random data

/// Lists of some rows against float64 scores: nothing that is chosen, or left out, is on the wrong side of the K-th by
/// more than rounding can explain.
inline void check_rounding(const Inputs& in, const Outputs& out, int topk, const std::string& name) {
  std::vector<std::int32_t> rows;
  for (int i = 0; i < 6; ++i) rows.push_back(static_cast<std::int32_t>(in.queries * i / 6 + i % 4));
  const Reference reference = reference_scores(in, rows, true);
  const auto indices = out.indices.get();
  const double unit = in.dtype == IndexerDtype::bf16 ? 0x1p-20 : 0x1p-12;
  double worst = 0;
  std::int64_t differing = 0, wrong = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double* scores = reference.scores.data() + i * static_cast<std::size_t>(in.keys);
    const double* size = reference.magnitude.data() + i * static_cast<std::size_t>(in.keys);
    std::vector<double> sorted(scores, scores + in.keys);
    std::nth_element(sorted.begin(), sorted.begin() + topk - 1, sorted.end(), std::greater<>());
    const double kth = sorted[static_cast<std::size_t>(topk - 1)];
    std::vector<char> chosen(static_cast<std::size_t>(in.keys));
    std::int32_t before = -1;
    for (int e = 0; e < topk; ++e) {
      const std::int32_t j = indices[static_cast<std::size_t>(rows[i]) * static_cast<std::size_t>(topk) + e];
      if (j <= before || j >= in.keys) {
        ++wrong;
        continue;
      }
      chosen[static_cast<std::size_t>(j)] = 1;
      before = j;
    }
    for (std::int64_t j = 0; j < in.keys; ++j) {
      const double beyond = chosen[static_cast<std::size_t>(j)] != 0 ? kth - scores[j] : scores[j] - kth;
      if (beyond > 0) {
        ++differing;
        worst = std::max(worst, beyond / size[j]);
      }
    }
  }
  const bool good = wrong == 0 && worst <= 2 * unit;
  char text[160];
  std::snprintf(text, sizeof text,
                "%lld of %zu entries differ from float64, worst by 2^%.1f of sum |w||q||k|, %lld bad",
                static_cast<long long>(differing / 2), rows.size() * static_cast<std::size_t>(topk),
                worst > 0 ? std::log2(worst) : -99.0, static_cast<long long>(wrong));
  report(good, name, text);
}

/// A captured launch, replayed on a dirty workspace, gives the lists of a plain one, lse included.
inline void check_graph() {
  Inputs in(IndexerDtype::bf16, 300, 30000, 64);
  in.fill(Pattern::random, base_seed + 11);
  const int topk = 2048;
  const Bounds bounds = make_bounds(in.queries, in.keys, topk, base_seed + 12, false);
  DeviceArray<std::int32_t> begin(bounds.begin), end(bounds.end);
  Outputs plain(in.queries, topk), replayed(in.queries, topk);
  IndexerArgs args;
  in.attach(args);
  args.topk = topk;
  args.key_begin = begin.data();
  args.key_end = end.data();
  args.row_count = static_cast<std::int32_t>(in.queries);
  plain.attach(args, true);
  DeviceArray<std::uint8_t> scratch(detail::sm90::indexer_scratch_bytes(args));
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  CUDA_OK(detail::sm90::load_indexer_kernels());
  CUDA_OK(detail::sm90::launch_indexer(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  replayed.attach(args, true);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(detail::sm90::launch_indexer(args, stream));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  bool same = true;
  for (int replay = 0; replay < 3; ++replay) {
    replayed.indices.poison();
    replayed.length.poison();
    replayed.lse.poison();
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    same = same && replayed.indices.get() == plain.indices.get() && replayed.length.get() == plain.length.get();
    const auto a = replayed.lse.get(), b = plain.lse.get();
    same = same && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
  report(same, "graph replays, bit for bit");
}

}  // namespace tandem::test
