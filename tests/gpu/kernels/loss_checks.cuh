// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_checks.cuh"
#include "loss_cases.cuh"

/// The indexer loss' checks: every result of a case against the oracle.
namespace tandem::test {

inline std::string describe(const LossCase& c) {
  char name[240];
  std::snprintf(name, sizeof name, "%s %s Hi %d K %d s %lld n %lld spread %g outputs %u%s%s%s%s%s%s%s%s",
                c.name.c_str(), c.e4m3 ? "e4m3" : "bf16", c.heads, c.topk, static_cast<long long>(c.queries),
                static_cast<long long>(c.keys), static_cast<double>(c.spread), c.outputs, c.relu ? "" : " no relu",
                c.full ? " full" : "", c.holes ? " holes" : "", c.part ? " part" : "", c.wide ? " wide" : "",
                c.near ? " near" : "", c.nan ? " nan" : "", c.hot ? " hot" : "");
  return name;
}

/// The tensors of a case on the device. What is written is poisoned, around it and before.
struct LossRun {
  DeviceArray<std::uint8_t> q, k;
  DeviceArray<float> w, scale, head_sums;
  DeviceArray<std::int32_t> lists, length;
  SpacedRows<double> loss;
  SpacedRows<std::uint16_t> narrow_dq;
  SpacedRows<float> dq, dw, dk;
  IndexerLossArgs args;

  LossRun(const LossCase& c, const LossData& d)
      : q(d.q),
        k(d.k),
        w(d.w),
        scale(d.scale),
        head_sums(d.head_sums),
        lists(d.lists),
        length(d.length),
        loss(c.queries, 1, 1),
        narrow_dq(c.queries, c.heads * std::int64_t{128}, c.heads * std::int64_t{128}),
        dq(c.queries, c.heads * std::int64_t{128}, c.heads * std::int64_t{128}),
        dw(c.queries, c.heads, c.heads),
        dk(c.keys, 128, 128) {
    dk.set(d.d_index_k);
    args.e4m3 = c.e4m3;
    args.heads = c.heads;
    args.topk = c.topk;
    args.relu = c.relu;
    args.keys = c.keys;
    args.row_begin = c.begin();
    args.row_end = c.end();
    args.q = q.data();
    args.w = w.data();
    args.k = k.data();
    args.k_scale = c.e4m3 ? scale.data() : nullptr;
    args.indices = lists.data();
    args.length = length.data();
    args.head_sums = head_sums.data();
    args.head_sums_stride = c.wide ? c.sums_width() : 0;
    args.loss_scale = c.loss_scale;
    args.upstream = c.upstream;
    if ((c.outputs & 1U) != 0) args.loss = loss.first();
    if ((c.outputs & 2U) != 0 && c.e4m3) args.d_index_q = dq.first();
    if ((c.outputs & 2U) != 0 && !c.e4m3) args.d_index_q = narrow_dq.first();
    if ((c.outputs & 4U) != 0) args.d_index_w = dw.first();
    if ((c.outputs & 8U) != 0) args.d_index_k = dk.first();
  }
  void run() {
    CUDA_OK(detail::sm90::launch_indexer_loss(args, nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }
  std::vector<double> d_index_q() const {
    if (args.e4m3) {
      const auto values = dq.dense();
      return {values.begin(), values.end()};
    }
    std::vector<double> values;
    for (const std::uint16_t bits : narrow_dq.dense()) values.push_back(static_cast<double>(wide(bits)));
    return values;
  }
  bool others_intact(const LossCase& c) const {
    const auto end_of = [&](unsigned bit) { return (c.outputs & bit) != 0 ? c.end() : c.begin(); };
    return loss.others_intact(c.begin(), end_of(1)) && dw.others_intact(c.begin(), end_of(4)) &&
           dq.others_intact(c.begin(), c.e4m3 ? end_of(2) : c.begin()) &&
           narrow_dq.others_intact(c.begin(), c.e4m3 ? c.begin() : end_of(2)) && dk.others_intact(0, c.keys) &&
           q.red_zone_intact() && k.red_zone_intact() && lists.red_zone_intact() && head_sums.red_zone_intact();
  }
};

/// How much the root of the mean squared error of a gradient that is rounded nowhere may be, relative: it is a sum over
/// entries, and matrix instructions cut off what they add (1.1e-5 was seen for 8192).
inline double almost_exact(const LossCase& c) { return 1e-5 * std::sqrt(std::max(1.0, c.topk / 2048.0)); }

/// A gradient against the oracle: twice the errors of the plain evaluation, and `most_relative` if it is f32.
inline void check_gradient(const std::string& name, const std::string& what, const std::vector<double>& found,
                           const std::vector<double>& exact, const std::vector<double>& plain,
                           const std::vector<double>& doubt, double most_relative, bool quiet) {
  double squares = 0, plain_squares = 0, size = 0, most = 0, plain_most = 0, largest = 0;
  bool finite = true;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isnan(exact[i])) continue;
    finite = finite && std::isfinite(found[i]);
    const double error = std::max(0.0, std::abs(found[i] - exact[i]) - doubt[i]),
                 allowed = std::abs(plain[i] - exact[i]);
    squares += error * error;
    plain_squares += allowed * allowed;
    size += exact[i] * exact[i];
    most = std::max(most, error);
    plain_most = std::max(plain_most, allowed);
    largest = std::max(largest, std::abs(exact[i]));
  }
  // The greatest error of few numbers is a matter of luck: one rounding is the same for all heads of a key.
  const double unit = largest * 0x1p-20, relative = std::sqrt(squares / std::max(size, 1e-60));
  const bool good = finite && most <= 3 * plain_most + unit && squares <= 4 * plain_squares + unit * unit &&
                    relative <= most_relative;
  char text[200] = "";
  if (!good || !quiet) {
    std::snprintf(text, sizeof text, "%s: error %.2e (plain %.2e, largest %.2e), rms ratio %.3f, relative %.2e%s",
                  what.c_str(), most, plain_most, largest, std::sqrt(squares / std::max(plain_squares, 1e-60)),
                  relative, finite ? "" : ", NOT FINITE");
  }
  backward_report(good, name, text);
}

inline void check_loss(const LossCase& c, const LossTruth& truth, const std::vector<double>& loss,
                       const std::string& name, bool quiet) {
  Stage stage;
  double most = 0;
  for (std::size_t i = 0; i < truth.loss.size(); ++i) {
    const double found = loss[static_cast<std::size_t>(c.begin()) + i], want = truth.loss[i];
    if (std::isnan(want)) {
      backward_report(std::isnan(found), name, std::isnan(found) ? "" : "a loss is a number where NaN was scored");
      continue;
    }
    const double allowed = 1e-5 * std::abs(want) + truth.loss_error[i];
    most = std::max(most, std::abs(found - want) / std::max(std::abs(want), 1e-30));
    stage.add(static_cast<std::int64_t>(i), found, want, allowed);
  }
  stage.report(name, "loss", 1, 1);
  if (!quiet) std::printf("ok    %s loss: relative error at most %.2e\n", name.c_str(), most);
}

/// Rows [begin, end) of a result alone.
inline std::vector<double> rows_of_case(const LossCase& c, const std::vector<double>& all, std::int64_t width) {
  return {all.begin() + c.begin() * width, all.begin() + c.end() * width};
}

inline void check_case(const LossCase& c, std::uint64_t seed, bool quiet = true) {
  const std::string name = describe(c) + " seed " + std::to_string(seed);
  const LossData d = make_loss_data(c, seed);
  const LossTruth truth = find_loss_truth(c, d);
  LossRun run(c, d);
  run.run();
  const auto loss = run.loss.dense();
  if ((c.outputs & 1U) != 0) check_loss(c, truth, loss, name, quiet);
  const auto dq = run.d_index_q();
  const auto found_dw = run.dw.dense(), found_dk = run.dk.dense();
  const std::vector<double> no_doubt(std::max(truth.dw.size(), truth.dk.size()), 0.0);
  const auto of_case = [&](const std::vector<double>& all, std::int64_t width) { return rows_of_case(c, all, width); };
  if ((c.outputs & 2U) != 0 && !c.near) {
    check_gradient(name, "d_index_q", of_case(dq, c.heads * std::int64_t{128}), truth.dq, truth.plain_dq,
                   truth.doubt_dq, c.e4m3 ? almost_exact(c) : INFINITY, quiet);
  }
  if ((c.outputs & 4U) != 0 && !c.near) {
    // Nothing of it is rounded to bf16, but the sum is of numbers that cancel.
    check_gradient(name, "d_index_w", of_case({found_dw.begin(), found_dw.end()}, c.heads), truth.dw,
                   std::vector<double>(truth.dw.size(), INFINITY), no_doubt, almost_exact(c), quiet);
  }
  if ((c.outputs & 8U) != 0 && !c.near) {
    check_gradient(name, "d_index_k", {found_dk.begin(), found_dk.end()}, truth.dk, truth.plain_dk, truth.doubt_dk,
                   almost_exact(c), quiet);
  }
  const bool intact = run.others_intact(c);
  backward_report(intact, name, intact ? "" : "something was written that is not the call's");
  if ((c.outputs & 8U) == 0) {
    const bool same = found_dk == d.d_index_k;
    backward_report(same, name, same ? "" : "d_index_k was added to and not asked for");
  }
  // Once more: all but d_index_k has the same bits.
  const auto bits = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
  };
  run.run();
  const bool same = bits(run.loss.dense(), loss) && bits(run.dw.dense(), found_dw) && bits(run.d_index_q(), dq);
  backward_report(same, name, same ? "" : "a second run has other bits");
  // The loss alone has the same bits, too.
  if (c.outputs != 15) return;
  LossRun alone(c, d);
  alone.args.d_index_q = nullptr;
  alone.args.d_index_w = alone.args.d_index_k = nullptr;
  alone.run();
  const bool alike = bits(alone.loss.dense(), loss);
  backward_report(alike, name, alike ? "" : "the loss alone has other bits");
}

}  // namespace tandem::test
