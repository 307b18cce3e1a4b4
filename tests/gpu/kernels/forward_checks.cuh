// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "forward_cases.cuh"

/// The sparse forward's checks: every shape against the oracle, one-hot attention bit by bit, offsets past 32 bits.
namespace tandem::test {

inline int forward_failures = 0;
inline void forward_report(bool good, const std::string& name, const std::string& detail = "") {
  if (!good) ++forward_failures;
  if (!good || !detail.empty()) std::printf("%-5s %s %s\n", good ? "ok" : "WRONG", name.c_str(), detail.c_str());
}

struct ForwardCase {
  std::string name;
  int heads = 64, dim = 576, topk = 64;
  std::int64_t queries = 11, keys = 1000;
  bool sink = false, holes = false, strided = false, full = false;
  float spread = 1.0F;  ///< of queries: 1 makes logits about normal
};

/// Tensors with NaN before, between and behind the rows, in rows of their own stride.
class PoisonedRows {
 public:
  PoisonedRows(std::int64_t rows, std::int64_t width, std::int64_t stride, std::int64_t margin)
      : rows_(rows),
        width_(width),
        stride_(stride),
        margin_(margin),
        data_(static_cast<std::size_t>(margin * 2 + rows * stride)) {
    CUDA_OK(cudaMemset(data_.data(), 0xFF, data_.bytes()));
  }
  __nv_bfloat16* first() { return data_.data() + margin_; }
  void fill(float factor, std::uint64_t seed) {
    DeviceArray<__nv_bfloat16> dense(static_cast<std::size_t>(rows_ * width_));
    fill_normal(dense.data(), dense.size(), factor, seed);
    if (rows_ > 0) {
      CUDA_OK(cudaMemcpy2D(first(), static_cast<std::size_t>(stride_) * 2, dense.data(),
                           static_cast<std::size_t>(width_) * 2, static_cast<std::size_t>(width_) * 2,
                           static_cast<std::size_t>(rows_), cudaMemcpyDeviceToDevice));
    }
  }
  std::vector<std::uint16_t> dense() {
    std::vector<std::uint16_t> host(static_cast<std::size_t>(rows_ * width_));
    if (rows_ > 0) {
      CUDA_OK(cudaMemcpy2D(host.data(), static_cast<std::size_t>(width_) * 2, first(),
                           static_cast<std::size_t>(stride_) * 2, static_cast<std::size_t>(width_) * 2,
                           static_cast<std::size_t>(rows_), cudaMemcpyDeviceToHost));
    }
    return host;
  }
  /// Whether all that belongs to no row still is NaN.
  bool margins_intact() {
    std::vector<std::uint16_t> host(data_.size());
    CUDA_OK(cudaMemcpy(host.data(), data_.data(), data_.bytes(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) - margin_;
      const bool inside = at >= 0 && at / stride_ < rows_ && at % stride_ < width_;
      if (!inside && host[i] != 0xFFFF) return false;
    }
    return data_.red_zone_intact();
  }

 private:
  std::int64_t rows_, width_, stride_, margin_;
  DeviceArray<__nv_bfloat16> data_;
};

inline double bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return static_cast<double>(value);
}

struct Accuracy {
  double most = 0, plain_most = 0, squares = 0, plain_squares = 0, lse = 0;
  double worst_row = 0;  ///< root mean square error of a (query, head) over the plain one's
  bool finite = true, lse_good = true;
};

/// Compares the outputs of `rows` with the oracle's. `out` is [rows, H, 512], `lse` [rows, H].
inline Accuracy compare_with_oracle(const SparseForwardArgs& args, const std::vector<std::int64_t>& rows,
                                    const std::vector<std::uint16_t>& out, const std::vector<float>& lse) {
  const auto pairs = rows.size() * static_cast<std::size_t>(args.heads);
  Accuracy a;
  if (pairs == 0) return a;
  DeviceArray<std::int64_t> list(rows);
  DeviceArray<double> scratch(pairs * static_cast<std::size_t>(args.topk)), exact(pairs * 512), plain(pairs * 512),
      exact_lse(pairs), size(pairs);
  oracle_kernel<<<dim3(static_cast<unsigned>(rows.size()), static_cast<unsigned>(args.heads)), 256>>>(
      args, list.data(), scratch.data(), {exact.data(), plain.data(), exact_lse.data(), size.data()});
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  const auto want = exact.get(), yardstick = plain.get(), want_lse = exact_lse.get(), greatest = size.get();
  std::vector<Accuracy> of(pairs);
  parallel(pairs, [&](std::size_t i) {
    Accuracy& mine = of[i];
    double square = 0;
    for (std::size_t c = 0; c < 512; ++c) {
      const double value = bf16_value(out[i * 512 + c]), exactly = want[i * 512 + c];
      if (!std::isfinite(value)) mine.finite = false;
      const double error = std::abs(value - exactly), allowed = std::abs(yardstick[i * 512 + c] - exactly);
      mine.most = std::max(mine.most, error);
      mine.plain_most = std::max(mine.plain_most, allowed);
      mine.squares += error * error;
      mine.plain_squares += allowed * allowed;
      square += exactly * exactly;
    }
    // Where the plain evaluation happens to be exact, half a unit in the last place is no fault.
    mine.worst_row = std::sqrt(mine.squares / std::max(mine.plain_squares, square * 1e-7 + 1e-60));
    if (std::isinf(want_lse[i])) {
      mine.lse_good = static_cast<double>(lse[i]) == want_lse[i];
    } else {
      mine.lse = std::abs(static_cast<double>(lse[i]) - want_lse[i]);
      mine.lse_good = mine.lse <= 0x1p-20 * (2.0 + greatest[i] + std::abs(want_lse[i]));
    }
  });
  for (const Accuracy& one : of) {
    a.most = std::max(a.most, one.most);
    a.plain_most = std::max(a.plain_most, one.plain_most);
    a.squares += one.squares;
    a.plain_squares += one.plain_squares;
    a.lse = std::max(a.lse, one.lse);
    a.worst_row = std::max(a.worst_row, one.worst_row);
    a.finite = a.finite && one.finite;
    a.lse_good = a.lse_good && one.lse_good;
  }
  return a;
}
inline bool accurate(const Accuracy& a) {
  return a.finite && a.lse_good && a.most <= 2 * a.plain_most + 1e-30 && a.squares <= 4 * a.plain_squares + 1e-60 &&
         a.worst_row <= 2.0;
}
inline std::string describe(const Accuracy& a) {
  char text[200];
  std::snprintf(text, sizeof text, "error %.2e (plain %.2e), rms ratio %.3f, worst row %.3f, lse %.1e%s%s", a.most,
                a.plain_most, std::sqrt(a.squares / std::max(a.plain_squares, 1e-60)), a.worst_row, a.lse,
                a.finite ? "" : ", NOT FINITE", a.lse_good ? "" : ", LSE OFF");
  return text;
}

inline void check_case(const ForwardCase& c, std::uint64_t seed, bool quiet = true) {
  const std::int64_t gap = c.strided ? 64 : 0, margin = 2048;
  PoisonedRows q(c.queries * c.heads, c.dim, c.dim + gap, margin), kv(c.keys, c.dim, c.dim + gap, margin),
      out(c.queries * c.heads, 512, 512 + gap, margin), again(c.queries * c.heads, 512, 512 + gap, margin);
  q.fill(c.spread, seed);
  kv.fill(1.0F, seed + 1);
  auto lists = make_lists(Lists::random, c.queries, c.keys, c.topk, seed + 2);
  std::vector<std::int32_t> length;
  const int lengths[] = {c.topk, 0, 1, 63, 64, 65, c.topk - 1, 128, 129, 192, c.topk / 2, c.topk + 1, -3};
  for (std::int64_t t = 0; t < c.queries; ++t) {
    const int wanted = c.full ? c.topk : lengths[(t + static_cast<std::int64_t>(seed)) % 13];
    length.push_back(wanted > c.topk + 1 ? c.topk : wanted);
    for (int i = 0; i < c.topk; ++i) {
      std::int32_t& entry = lists[static_cast<std::size_t>(t * c.topk + i)];
      const std::uint64_t r = mix(seed + 3, static_cast<std::uint64_t>(t * c.topk + i));
      if (i >= length.back()) {
        entry = r % 3 == 0 ? -1 : r % 3 == 1 ? 0x7FFFFFFF : static_cast<std::int32_t>(r >> 32);
      } else if (c.holes && (r % 7 == 0 || (t % 4 == 1 && i / 64 == 1) || (t % 4 == 2 && i / 64 == 0))) {
        entry = r % 2 == 0 ? -1 : static_cast<std::int32_t>(c.keys + static_cast<std::int64_t>(r % 3));
      }
    }
  }
  DeviceArray<std::int32_t> list_data(lists), length_data(length);
  std::vector<float> sinks;
  for (int h = 0; h < c.heads; ++h) sinks.push_back(h % 5 == 4 ? -INFINITY : 3.0F * normal(seed + 4, h));
  DeviceArray<float> sink_data(sinks), lse(static_cast<std::size_t>(c.queries * c.heads)), lse_again(lse.size());
  SparseForwardArgs args;
  args.heads = c.heads;
  args.dim = c.dim;
  args.topk = c.topk;
  args.scale = 1.0F / std::sqrt(static_cast<float>(c.dim));
  args.queries = c.queries;
  args.keys = c.keys;
  args.q = q.first();
  args.q_head_stride = c.dim + gap;
  args.q_row_stride = c.heads * (c.dim + gap);
  args.kv = kv.first();
  args.kv_row_stride = c.dim + gap;
  args.indices = list_data.data();
  args.length = length_data.data();
  args.sink = c.sink ? sink_data.data() : nullptr;
  args.out = out.first();
  args.out_head_stride = 512 + gap;
  args.out_row_stride = c.heads * (512 + gap);
  args.lse = lse.data();
  CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  args.out = again.first();
  args.lse = lse_again.data();
  CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const auto result = out.dense();
  const auto result_lse = lse.get();
  char name[200];
  std::snprintf(name, sizeof name, "%s H %d d %d K %d s %lld n %lld%s%s%s spread %g", c.name.c_str(), c.heads, c.dim,
                c.topk, static_cast<long long>(c.queries), static_cast<long long>(c.keys), c.sink ? " sink" : "",
                c.holes ? " holes" : "", c.strided ? " strided" : "", static_cast<double>(c.spread));
  const auto second = lse_again.get();
  const bool same =
      result == again.dense() && std::memcmp(second.data(), result_lse.data(), second.size() * sizeof(float)) == 0;
  forward_report(same, name, same ? "" : "differs from run to run");
  const bool zones = out.margins_intact() && again.margins_intact() && lse.red_zone_intact() &&
                     lse_again.red_zone_intact() && list_data.red_zone_intact();
  forward_report(zones, name, zones ? "" : "wrote where it must not");
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < c.queries; t += std::max<std::int64_t>(1, c.queries / 40)) rows.push_back(t);
  std::vector<std::uint16_t> some;
  std::vector<float> some_lse;
  for (const std::int64_t t : rows) {
    const auto from = static_cast<std::ptrdiff_t>(t * c.heads), to = from + c.heads;
    some.insert(some.end(), result.begin() + from * 512, result.begin() + to * 512);
    some_lse.insert(some_lse.end(), result_lse.begin() + from, result_lse.begin() + to);
  }
  const Accuracy a = compare_with_oracle(args, rows, some, some_lse);
  forward_report(accurate(a), name, accurate(a) && quiet ? "" : describe(a));
}

/// One key, or one key that outweighs all others: the output is its value row, bit for bit.
inline void check_one_hot(int heads, int dim, std::uint64_t seed) {
  const std::int64_t queries = 150, keys = 700;
  const int topk = 320;
  auto lists = make_lists(Lists::random, queries, keys, topk, seed);
  std::vector<std::int32_t> length, chosen;
  std::vector<std::uint16_t> q(static_cast<std::size_t>(queries * heads * dim), 0), kv;
  for (std::int64_t i = 0; i < keys * dim; ++i) {
    const float value = normal(seed + 1, static_cast<std::uint64_t>(i)) * 0.25F;
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    kv.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  for (std::int64_t t = 0; t < queries; ++t) {
    length.push_back(t % 3 == 0 ? 1 : topk);
    const int at =
        static_cast<int>(mix(seed + 2, static_cast<std::uint64_t>(t)) % static_cast<std::uint64_t>(length.back()));
    chosen.push_back(lists[static_cast<std::size_t>(t * topk + at)]);
    // Queries are the chosen row, many times over.
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < dim; ++d) {
        q[static_cast<std::size_t>((t * heads + h) * dim + d)] = kv[static_cast<std::size_t>(chosen.back() * dim + d)];
      }
    }
  }
  DeviceArray<std::uint16_t> q_data(q), kv_data(kv), out(static_cast<std::size_t>(queries * heads * 512));
  DeviceArray<std::int32_t> list_data(lists), length_data(length);
  DeviceArray<float> lse(static_cast<std::size_t>(queries * heads));
  SparseForwardArgs args;
  args.heads = heads;
  args.dim = dim;
  args.topk = topk;
  args.scale = 8.0F;
  args.queries = queries;
  args.keys = keys;
  args.q = q_data.data();
  args.kv = kv_data.data();
  args.indices = list_data.data();
  args.length = length_data.data();
  args.out = out.data();
  args.lse = lse.data();
  CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const auto result = out.get();
  std::size_t wrong = 0;
  for (std::int64_t t = 0; t < queries; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int c = 0; c < 512; ++c) {
        wrong += result[static_cast<std::size_t>((t * heads + h) * 512 + c)] !=
                 kv[static_cast<std::size_t>(chosen[static_cast<std::size_t>(t)] * dim + c)];
      }
    }
  }
  forward_report(wrong == 0, "one-hot H " + std::to_string(heads) + " d " + std::to_string(dim),
                 wrong == 0 ? "" : std::to_string(wrong) + " elements differ from the value row");
}

/// Rows of q, kv and out that begin beyond 2^31 elements.
inline void check_large_offsets(int heads, std::uint64_t seed) {
  const std::int64_t queries = 3, keys = 4'000'000, live = 3000, stride = 1'100'000'000;
  const int dim = 576, topk = 256;
  DeviceArray<__nv_bfloat16> kv(static_cast<std::size_t>(keys * dim));
  DeviceArray<__nv_bfloat16> q(static_cast<std::size_t>((queries - 1) * stride + heads * dim));
  DeviceArray<std::uint16_t> out(static_cast<std::size_t>((queries - 1) * stride + heads * 512));
  fill_normal(kv.data() + (keys - live) * dim, static_cast<std::size_t>(live * dim), 1.0F, seed);
  for (std::int64_t t = 0; t < queries; ++t) {
    fill_normal(q.data() + t * stride, static_cast<std::size_t>(heads * dim), 1.0F, seed + 1 + t);
  }
  auto lists = make_lists(Lists::random, queries, live, topk, seed + 9);
  for (std::int32_t& entry : lists) entry += static_cast<std::int32_t>(keys - live);
  DeviceArray<std::int32_t> list_data(lists), length_data(std::vector<std::int32_t>(queries, topk));
  DeviceArray<float> lse(static_cast<std::size_t>(queries * heads));
  SparseForwardArgs args;
  args.heads = heads;
  args.dim = dim;
  args.topk = topk;
  args.scale = 1.0F / 24.0F;
  args.queries = queries;
  args.keys = keys;
  args.q = q.data();
  args.q_head_stride = dim;
  args.q_row_stride = stride;
  args.kv = kv.data();
  args.kv_row_stride = dim;
  args.indices = list_data.data();
  args.length = length_data.data();
  args.out = out.data();
  args.out_row_stride = stride;
  args.lse = lse.data();
  CUDA_OK(detail::sm90::launch_sparse_forward(args, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  std::vector<std::uint16_t> result(static_cast<std::size_t>(queries * heads * 512));
  for (std::int64_t t = 0; t < queries; ++t) {
    CUDA_OK(cudaMemcpy(result.data() + t * heads * 512, out.data() + t * stride, static_cast<std::size_t>(heads) * 1024,
                       cudaMemcpyDeviceToHost));
  }
  const Accuracy a = compare_with_oracle(args, {0, 1, 2}, result, lse.get());
  forward_report(accurate(a) && out.red_zone_intact(), "offsets past 2^31, H " + std::to_string(heads), describe(a));
}

inline void check_forward(std::uint64_t seed, const std::vector<int>& all_heads) {
  SparseForwardArgs nothing;
  nothing.heads = 64;
  nothing.topk = 64;
  forward_report(detail::sm90::launch_sparse_forward(nothing, nullptr) == cudaSuccess, "no queries");
  for (const int heads : all_heads) {
    const int before = forward_failures;
    for (const int dim : {576, 512}) {
      const ForwardCase base{.name = "case", .heads = heads, .dim = dim};
      auto next = [&](auto change) {
        ForwardCase c = base;
        change(c);
        check_case(c, ++seed);
      };
      next([](ForwardCase& c) { c.queries = 1, c.full = true; });
      next([](ForwardCase& c) { c.queries = 1, c.full = true, c.topk = 128; });
      next([](ForwardCase& c) { c.topk = 192, c.queries = 26; });
      next([](ForwardCase& c) { c.topk = 512, c.queries = 13, c.sink = true, c.strided = true; });
      next([](ForwardCase& c) { c.topk = 512, c.queries = 39, c.holes = true; });
      next([](ForwardCase& c) { c.topk = 256, c.queries = 500, c.holes = true, c.sink = true; });
      next([](ForwardCase& c) { c.topk = 320, c.queries = 400, c.spread = 20.0F; });
      next([](ForwardCase& c) { c.topk = 320, c.queries = 20, c.spread = 80.0F, c.sink = true; });
      next([](ForwardCase& c) { c.topk = 2048, c.keys = 5000, c.queries = 14, c.holes = true; });
      check_one_hot(heads, dim, ++seed);
    }
    {
      ForwardCase c{.name = "long", .heads = heads, .topk = 8192, .queries = 3, .keys = 20000, .full = true};
      check_case(c, ++seed, false);
    }
    std::printf("H %d: %d failures\n", heads, forward_failures - before);
  }
  check_large_offsets(16, ++seed);
  check_large_offsets(64, ++seed);
}

}  // namespace tandem::test
