// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backward_cases.cuh"

/// The sparse backward's checks: every shape stage by stage against the oracle, so that what is wrong is told from what
/// follows from it; cases whose gradients are known bit by bit; offsets past 32 bits.
namespace tandem::test {

inline int backward_failures = 0;
inline void backward_report(bool good, const std::string& name, const std::string& detail = "") {
  if (!good) ++backward_failures;
  if (!good || !detail.empty()) std::printf("%-5s %s %s\n", good ? "ok" : "WRONG", name.c_str(), detail.c_str());
}

/// Rows on the device in a stride of their own, with NaN before, between and behind them.
template <typename T>
class SpacedRows {
 public:
  SpacedRows(std::int64_t rows, std::int64_t width, std::int64_t stride)
      : rows_(rows), width_(width), stride_(stride), data_(static_cast<std::size_t>(2 * margin + rows * stride)) {
    CUDA_OK(cudaMemset(data_.data(), 0xFF, data_.bytes()));
  }
  T* first() { return data_.data() + margin; }
  void set(const std::vector<T>& dense) {
    auto host = data_.get();
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy_n(dense.begin() + r * width_, width_, host.begin() + margin + r * stride_);
    }
    data_.set(host);
  }
  std::vector<T> dense() const {
    const auto host = data_.get();
    std::vector<T> rows;
    for (std::int64_t r = 0; r < rows_; ++r) {
      rows.insert(rows.end(), host.begin() + margin + r * stride_, host.begin() + margin + r * stride_ + width_);
    }
    return rows;
  }
  /// Whether all but rows [begin, end) still is NaN.
  bool others_intact(std::int64_t begin, std::int64_t end) const {
    const auto host = data_.get();
    const std::vector<unsigned char> untouched(sizeof(T), 0xFF);
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) - margin;
      const std::int64_t row = at >= 0 ? at / stride_ : -1;
      const bool inside = row >= begin && row < end && at % stride_ < width_;
      if (!inside && std::memcmp(&host[i], untouched.data(), sizeof(T)) != 0) return false;
    }
    return data_.red_zone_intact();
  }

 private:
  static constexpr std::int64_t margin = 1024;
  std::int64_t rows_, width_, stride_;
  DeviceArray<T> data_;
};

/// The tensors of a case on the device.
struct BackwardRun {
  std::int64_t gap;
  SpacedRows<std::uint16_t> q, kv, dout, out, dq;
  SpacedRows<float> dkv, head_sums;
  DeviceArray<std::int32_t> lists, length;
  DeviceArray<float> lse, sink, dsink;
  std::unique_ptr<DeviceArray<std::uint8_t>> workspace;
  SparseBackwardArgs args;

  BackwardRun(const BackwardCase& c, const BackwardData& d)
      : gap(c.strided ? 64 : 0),
        q(c.queries * c.heads, c.dim, c.dim + gap),
        kv(c.keys, c.dim, c.dim + gap),
        dout(c.queries * c.heads, 512, 512 + gap),
        out(c.queries * c.heads, 512, 512 + gap),
        dq(c.queries * c.heads, c.dim, c.dim + gap),
        dkv(c.keys, c.dim, c.dim + gap / 16),
        head_sums(c.rows(), c.topk, c.topk),
        lists(d.lists),
        length(d.length),
        lse(d.lse),
        sink(d.sink),
        dsink(std::vector<float>(static_cast<std::size_t>(c.heads), 0.5F)) {
    q.set(d.q);
    kv.set(d.kv);
    dout.set(d.dout);
    out.set(d.out);
    dkv.set(d.dkv);
    args.heads = c.heads;
    args.dim = c.dim;
    args.topk = c.topk;
    args.scale = c.scale();
    args.queries = c.queries;
    args.keys = c.keys;
    args.row_begin = c.begin();
    args.row_end = c.end();
    args.q = q.first();
    args.kv = kv.first();
    args.dout = dout.first();
    args.out = out.first();
    args.dq = dq.first();
    args.dkv = dkv.first();
    if (c.strided) {
      args.q_head_stride = args.dq_head_stride = c.dim + gap;
      args.q_row_stride = args.dq_row_stride = c.heads * (c.dim + gap);
      args.kv_row_stride = c.dim + gap;
      args.dout_head_stride = args.out_head_stride = 512 + gap;
      args.dout_row_stride = args.out_row_stride = c.heads * (512 + gap);
      args.dkv_row_stride = c.dim + gap / 16;
    }
    args.indices = lists.data();
    args.length = length.data();
    args.lse = lse.data();
    args.sink = c.sink ? sink.data() : nullptr;
    args.dsink = c.sink ? dsink.data() : nullptr;
    args.head_sums = head_sums.first();
    args.tiles_per_visit = c.visit;
    args.deterministic = c.deterministic;
    args.workspace_bytes = sparse_backward_workspace_bytes(args, c.rows_at_a_time > 0 ? c.rows_at_a_time : c.rows());
    workspace = std::make_unique<DeviceArray<std::uint8_t>>(args.workspace_bytes);
    CUDA_OK(cudaMemset(workspace->data(), 0xFF, args.workspace_bytes));
    args.workspace = workspace->data();
  }
  void run() {
    CUDA_OK(detail::sm90::launch_sparse_backward(args, nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }
};

/// How many of a stage's numbers are too far off, and which is the worst.
struct Stage {
  std::int64_t wrong = 0, all = 0, worst = -1;
  double worst_ratio = 0, got = 0, want = 0;
  void add(std::int64_t at, double value, double truth, double allowed) {
    ++all;
    const double error = std::abs(value - truth);
    const bool bad = !(error <= allowed);
    wrong += bad ? 1 : 0;
    const double ratio = std::isfinite(value) ? error / std::max(allowed, 1e-300) : INFINITY;
    if (worst < 0 || ratio > worst_ratio) worst = at, worst_ratio = ratio, got = value, want = truth;
  }
  void report(const std::string& name, const std::string& stage, std::int64_t width, std::int64_t inner) const {
    char text[240] = "";
    if (wrong != 0) {
      std::snprintf(text, sizeof text,
                    "%s: %lld of %lld off; worst at row %lld, head or key %lld, column %lld: %g for %g", stage.c_str(),
                    static_cast<long long>(wrong), static_cast<long long>(all),
                    static_cast<long long>(worst / (width * inner)), static_cast<long long>(worst / inner % width),
                    static_cast<long long>(worst % inner), got, want);
    }
    backward_report(wrong == 0, name, text);
  }
};

/// The workspace's P and dS, [rows, H, K] each, by the layout that sparse_backward_shared.cuh describes.
struct Weights {
  std::vector<double> p, ds;
  bool padding_zero = true;

  Weights(const BackwardCase& c, const BackwardData& d, const std::vector<std::uint8_t>& bytes) {
    const std::int64_t heads = c.heads, topk = c.topk, blocks = (heads + 63) / 64;
    p.assign(static_cast<std::size_t>(c.rows() * heads * topk), 0.0);
    ds = p;
    for (std::int64_t row = 0; row < c.rows(); ++row) {
      const std::int64_t tiles = (valid_length(c, d, c.begin() + row) + 63) / 64;
      for (std::int64_t key = 0; key < tiles * 64; ++key) {
        for (std::int64_t head = 0; head < blocks * 64; ++head) {
          for (std::int64_t what = 0; what < 2; ++what) {
            const std::int64_t tile = ((row * (topk / 64) + key / 64) * 2 + what) * blocks + head / 64;
            const std::int64_t inside = key % 64 * 128 + ((head % 64 / 8) ^ (key % 8)) * 16 + head % 8 * 2;
            std::uint16_t bits;
            std::memcpy(&bits, bytes.data() + tile * 8192 + inside, 2);
            const auto value = static_cast<double>(wide(bits));
            if (head < heads) {
              (what == 0 ? p : ds)[static_cast<std::size_t>((row * heads + head) * topk + key)] = value;
            } else if (!(value == 0.0)) {
              padding_zero = false;
            }
          }
        }
      }
    }
  }
};

/// Errors of a result against those of the plain evaluation.
struct Against {
  double most = 0, plain_most = 0, squares = 0, plain_squares = 0, largest = 0;
  bool finite = true;
  void add(double value, double exact, double plain) {
    if (!std::isfinite(value)) finite = false;
    const double error = std::abs(value - exact), allowed = std::abs(plain - exact);
    most = std::max(most, error);
    plain_most = std::max(plain_most, allowed);
    squares += error * error;
    plain_squares += allowed * allowed;
    largest = std::max(largest, std::abs(exact));
  }
  void report(const std::string& name, const std::string& stage, bool quiet) const {
    // fp32 sums have errors of their own, which count where the plain evaluation happens to be exact.
    const double unit = largest * 0x1p-20;
    const bool good = finite && most <= 2 * plain_most + unit && squares <= 4 * plain_squares + unit * unit;
    char text[200] = "";
    if (!good || !quiet) {
      std::snprintf(text, sizeof text, "%s: error %.2e (plain %.2e, largest %.2e), rms ratio %.3f%s", stage.c_str(),
                    most, plain_most, largest, std::sqrt(squares / std::max(plain_squares, 1e-60)),
                    finite ? "" : ", NOT FINITE");
    }
    backward_report(good, name, text);
  }
};

inline std::string describe(const BackwardCase& c) {
  char name[240];
  std::snprintf(name, sizeof name,
                "%s H %d d %d K %d s %lld n %lld spread %g rows at a time %lld visit %d%s%s%s%s%s%s%s", c.name.c_str(),
                c.heads, c.dim, c.topk, static_cast<long long>(c.queries), static_cast<long long>(c.keys),
                static_cast<double>(c.spread), static_cast<long long>(c.rows_at_a_time), c.visit, c.sink ? " sink" : "",
                c.holes ? " holes" : "", c.strided ? " strided" : "", c.full ? " full" : "", c.part ? " part" : "",
                c.hot ? " hot" : "", c.deterministic ? " deterministic" : "");
  return name;
}

/// P and dS against the truth, and what the keys pass makes of them, whether they are right or not.
inline void check_stages(const BackwardCase& c, const BackwardData& d, const BackwardTruth& truth,
                         const std::vector<std::uint8_t>& workspace, const std::vector<float>& dkv) {
  const std::string name = describe(c);
  const Weights weights(c, d, workspace);
  Stage p, ds, sums, keys;
  for (std::size_t i = 0; i < truth.p.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    p.add(at, weights.p[i], truth.p[i], truth.p[i] * 0x1.2p-8 + 1e-36);
    ds.add(at, weights.ds[i], truth.ds[i], std::abs(truth.ds[i]) * 0x1.2p-8 + truth.ds_error[i] + 1e-36);
  }
  const std::int64_t topk = c.topk;
  p.report(name, "P", c.heads, topk);
  ds.report(name, "dS", c.heads, topk);
  backward_report(weights.padding_zero, name, weights.padding_zero ? "" : "P or dS of padding heads is not 0");
  // The softmax's gradient has no sum, but for the rounding of out in delta and of dS itself; the sink takes the rest.
  for (std::size_t place = 0; place < truth.delta.size() && !c.sink; ++place) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(topk); ++i) {
      sum += weights.ds[place * static_cast<std::size_t>(topk) + i];
      size += std::abs(weights.ds[place * static_cast<std::size_t>(topk) + i]);
    }
    const double allowed = 0x1p-8 * (size + truth.delta_size[place] * static_cast<double>(c.scale())) + 1e-30;
    sums.add(static_cast<std::int64_t>(place), sum, 0.0, allowed);
  }
  sums.report(name, "sum of dS", c.heads, 1);
  std::vector<double> from(d.dkv.begin(), d.dkv.end());
  std::vector<double> size(from.size(), 1.0), p_size = weights.p, ds_size = weights.ds;
  add_keys<double>(c, d, widened(d.q), widened(d.dout), weights.p, weights.ds, false, from);
  auto positive = [](std::vector<float> of) {
    for (float& x : of) x = std::abs(x);
    return of;
  };
  for (double& x : ds_size) x = std::abs(x);
  add_keys<double>(c, d, positive(widened(d.q)), positive(widened(d.dout)), p_size, ds_size, false, size);
  for (std::size_t i = 0; i < from.size(); ++i) {
    keys.add(static_cast<std::int64_t>(i), static_cast<double>(dkv[i]), from[i], size[i] * 0x1p-20);
  }
  keys.report(name, "dkv from the workspace's P and dS", c.keys, c.dim);
}

inline void check_case(const BackwardCase& c, std::uint64_t seed, bool quiet = true) {
  const BackwardData d = make_data(c, seed);
  const BackwardTruth truth = find_truth(c, d);
  const std::string name = describe(c);
  BackwardRun run(c, d);
  run.run();
  const auto dkv = run.dkv.dense();
  if (c.rows_at_a_time == 0) check_stages(c, d, truth, run.workspace->get(), dkv);
  const auto dq = run.dq.dense();
  const std::size_t first = static_cast<std::size_t>(c.begin() * c.heads) * static_cast<std::size_t>(c.dim);
  Against queries, keys;
  bool dead_rows = true, others = true;
  for (std::size_t i = 0; i < truth.dq.size(); ++i) {
    const auto value = static_cast<double>(wide(dq[first + i]));
    queries.add(value, truth.dq[i], truth.plain_dq[i]);
    const auto row = static_cast<std::int64_t>(i) / (std::int64_t{c.heads} * c.dim);
    if (valid_length(c, d, c.begin() + row) == 0 && dq[first + i] != 0) dead_rows = false;
  }
  std::vector<bool> chosen(static_cast<std::size_t>(c.keys), false);
  for (std::int64_t t = c.begin(); t < c.end(); ++t) {
    for (int i = 0; i < valid_length(c, d, t); ++i) {
      const std::int32_t row = d.lists[static_cast<std::size_t>(t * c.topk + i)];
      if (is_row(c, row)) chosen[static_cast<std::size_t>(row)] = true;
    }
  }
  for (std::size_t i = 0; i < truth.dkv.size(); ++i) {
    keys.add(static_cast<double>(dkv[i]), truth.dkv[i], truth.plain_dkv[i]);
    if (!chosen[i / static_cast<std::size_t>(c.dim)] && dkv[i] != d.dkv[i]) others = false;
  }
  queries.report(name, "dq", quiet);
  keys.report(name, "dkv", quiet);
  backward_report(dead_rows, name, dead_rows ? "" : "dq of a row without keys is not 0");
  backward_report(others, name, others ? "" : "dkv of a row that nobody chose has changed");
  Stage head_sums, sinks;
  const auto sums = run.head_sums.dense();
  // An exponential's relative error is its argument's error: of logits of four times spread, which a matrix instruction
  // has to about 2^-20 (2.7e-4 was seen for spread 80).
  const double allowed = 0x1p-13 + (c.spread > 1.0F ? 4.0 * static_cast<double>(c.spread) * 0x1p-20 : 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    head_sums.add(static_cast<std::int64_t>(i), static_cast<double>(sums[i]), truth.head_sums[i],
                  truth.head_sums[i] * allowed + 1e-36);
  }
  head_sums.report(name, "head sums", 1, c.topk);
  if (c.sink) {
    const auto dsink = run.dsink.get();
    for (std::size_t h = 0; h < dsink.size(); ++h) {
      sinks.add(static_cast<std::int64_t>(h), static_cast<double>(dsink[h]) - 0.5, truth.dsink[h],
                truth.dsink_size[h] * 0x1p-18 + 1e-6);
    }
    sinks.report(name, "dsink", c.heads, 1);
  }
  const bool zones = run.dq.others_intact(c.begin() * c.heads, c.end() * c.heads) && run.dkv.others_intact(0, c.keys) &&
                     run.head_sums.others_intact(0, c.rows()) && run.workspace->red_zone_intact() &&
                     run.dsink.red_zone_intact();
  backward_report(zones, name, zones ? "" : "wrote where it must not");
  if (c.deterministic) {
    BackwardRun twin(c, d);
    twin.run();
    const auto twin_dkv = twin.dkv.dense(), dsink = run.dsink.get(), twin_dsink = twin.dsink.get();
    const bool equal = std::memcmp(twin_dkv.data(), dkv.data(), dkv.size() * sizeof(float)) == 0 &&
                       std::memcmp(twin_dsink.data(), dsink.data(), dsink.size() * sizeof(float)) == 0;
    backward_report(equal, name, equal ? "" : "dkv or dsink differs from run to run");
  }
  // Again, a few rows and tiles at a time and without what is optional: dq has the same bits.
  BackwardCase other = c;
  other.rows_at_a_time = 3;
  other.visit = c.visit == 0 ? 2 : 0;
  BackwardRun again(other, d);
  again.args.head_sums = nullptr;
  again.args.dsink = nullptr;
  again.run();
  const bool same = again.dq.dense() == dq;
  backward_report(same, name, same ? "" : "dq depends on the workspace's size");
  Against again_keys;
  const auto again_dkv = again.dkv.dense();
  for (std::size_t i = 0; i < truth.dkv.size(); ++i) {
    again_keys.add(static_cast<double>(again_dkv[i]), truth.dkv[i], truth.plain_dkv[i]);
  }
  again_keys.report(name, "dkv, few rows at a time", true);
}

/// Queries 0, one key each, nobody else's: P = 1, and dkv of the key is the only head's dout, bit for bit.
inline void check_one_hot(int heads, int dim, std::uint64_t seed) {
  const BackwardCase c{.name = "one key", .heads = heads, .dim = dim, .topk = 64, .queries = 37, .keys = 100};
  BackwardData d = make_data(c, seed);
  std::fill(d.q.begin(), d.q.end(), std::uint16_t{0});
  std::fill(d.dkv.begin(), d.dkv.end(), 0.0F);
  std::fill(d.length.begin(), d.length.end(), 1);
  for (std::int64_t t = 0; t < c.queries; ++t) {
    d.lists[static_cast<std::size_t>(t * c.topk)] = static_cast<std::int32_t>((t * 7 + 3) % c.keys);
    for (int h = 0; h < heads; ++h) {
      if (h == t % heads) continue;
      std::fill_n(d.dout.begin() + (t * heads + h) * 512, 512, std::uint16_t{0});
    }
  }
  exact_forward(c, d);
  BackwardRun run(c, d);
  run.run();
  const auto dkv = run.dkv.dense();
  bool good = true;
  for (std::int64_t t = 0; t < c.queries; ++t) {
    const float* row = dkv.data() + (t * 7 + 3) % c.keys * dim;
    for (int x = 0; x < dim; ++x) {
      const float want = x < 512 ? wide(d.dout[static_cast<std::size_t>((t * heads + t % heads) * 512 + x)]) : 0.0F;
      if (row[x] != want) good = false;
    }
  }
  backward_report(good, describe(c), good ? "" : "dkv is not dout");
}

/// dout = 1 and q = 0: dkv counts who chose a row, H / length each.
inline void check_histogram(int heads, int dim, std::uint64_t seed) {
  const BackwardCase c{.name = "histogram", .heads = heads, .dim = dim, .topk = 256, .queries = 40, .keys = 300};
  BackwardData d = make_data(c, seed);
  std::fill(d.q.begin(), d.q.end(), std::uint16_t{0});
  std::fill(d.dkv.begin(), d.dkv.end(), 0.0F);
  std::fill(d.dout.begin(), d.dout.end(), std::uint16_t{0x3F80});
  exact_forward(c, d);
  BackwardRun run(c, d);
  run.run();
  const auto dkv = run.dkv.dense();
  std::vector<double> count(static_cast<std::size_t>(c.keys), 0.0);
  for (std::int64_t t = 0; t < c.queries; ++t) {
    const int length = valid_length(c, d, t);
    for (int i = 0; i < length; ++i) {
      count[static_cast<std::size_t>(d.lists[static_cast<std::size_t>(t * c.topk + i)])] +=
          rounded(1.0 / length) * heads;
    }
  }
  Stage stage;
  for (std::int64_t i = 0; i < c.keys * dim; ++i) {
    const double want = i % dim < 512 ? count[static_cast<std::size_t>(i / dim)] : 0.0;
    // 1 / length may be rounded the other way where the logarithm is.
    stage.add(i, static_cast<double>(dkv[static_cast<std::size_t>(i)]), want, want * 0x1p-8 + 1e-12);
  }
  stage.report(describe(c), "counts", c.keys, dim);
}

}  // namespace tandem::test
