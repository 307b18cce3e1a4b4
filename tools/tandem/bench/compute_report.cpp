// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/compute_report.hpp"

#include <fmt/format.h>

#include "tandem/built_from.hpp"

namespace tandem::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr double mib = 1024.0 * 1024;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

std::string number(const std::optional<double>& value, int decimals, const char* otherwise = "-") {
  return value ? fmt::format("{:.{}f}", *value, decimals) : otherwise;
}

std::optional<double> if_any(double value) { return value > 0 ? std::optional<double>(value) : std::nullopt; }

std::optional<double> percent(const std::optional<double>& part) {
  return part ? std::optional<double>(100 * *part) : std::nullopt;
}

std::string wrong_of(const ComputeRow& row) { return row.checked ? std::to_string(row.verdict.wrong) : "N/A"; }

std::optional<double> near_share(const ComputeRow& row) {
  if (row.verdict.listed == 0) return std::nullopt;
  return static_cast<double>(row.verdict.listed_near) / static_cast<double>(row.verdict.listed);
}

std::string queries_of(const ComputeRow& row) {
  return row.share > 0 ? fmt::format("{} of 1/{}", row.queries, row.share) : std::to_string(row.queries);
}

const char* communication_title(ComputeOperation operation) {
  if (operation == ComputeOperation::dsa_fwd) return "gather";
  return operation == ComputeOperation::dsa_bwd ? "reduce" : "both comms";
}

json json_of(const ComputeRow& row) {
  json out = {{"keys", row.keys},
              {"queries", row.queries},
              {"share", row.share > 0 ? json(row.share) : json(nullptr)},
              {"pattern", row.step ? json(nullptr) : json(to_string(row.pattern))},
              {"pairs", row.pairs},
              {"iterations", row.us.count},
              {"median_us", row.us.median},
              {"p95_us", row.us.p95},
              {"cv", row.us.cv},
              {"flops", row.cost.flops},
              {"bytes", row.cost.bytes},
              {"tflops", or_null(if_any(row.teraflops()))},
              {"gbs", row.gigabytes()},
              {"added_bytes", or_null(if_any(row.added_bytes))},
              {"added_gbs", or_null(if_any(row.added_gigabytes()))},
              {"floor_us", or_null(row.floor_us)},
              {"of_floor", or_null(row.of_floor())},
              {"scratch_bytes", row.scratch},
              {"wrong", row.checked ? json(row.verdict.wrong) : json(nullptr)},
              {"checked_rows", row.verdict.rows},
              {"near_ties", row.verdict.near_ties},
              {"near_share", or_null(near_share(row))},
              {"late", row.late}};
  if (!row.step) return out;
  const StepFigures& s = *row.step;
  out["schedule"] = to_string(s.schedule);
  out["compute_us"] = s.compute_us;
  out["communication_us"] = s.communication_us;
  out["gather_us"] = or_null(s.gather_us);
  out["reduce_us"] = or_null(s.reduce_us);
  out["exposed_us"] = s.exposed_us;
  out["hidden"] = or_null(s.hidden());
  out["landed_bytes"] = s.landed_bytes;
  out["received_bytes"] = s.received_bytes;
  return out;
}

json rates_json(DeviceKind device) {
  const std::optional<Rates> rates = rates_of(device);
  if (!rates) return nullptr;
  return {{"bf16_tflops", rates->bf16_flops / 1e12},
          {"e4m3_tflops", rates->e4m3_flops / 1e12},
          {"gbs", rates->bytes / 1e9},
          {"source", "bf16: a GEMM of 8192^3, measured on one H200; e4m3 and memory: assumed"}};
}

}  // namespace

std::optional<double> StepFigures::hidden() const {
  if (received_rows == 0 || communication_us <= 0) return std::nullopt;
  return 1 - exposed_us / communication_us;
}

std::optional<double> ComputeRow::of_floor() const {
  if (!floor_us || us.median <= 0) return std::nullopt;
  return *floor_us / us.median;
}

std::string ComputeReport::begin() const {
  if (job_.common.json) return "";
  if (job_.common.csv) {
    std::string columns =
        "operation,keys,queries,pattern,pairs,median_us,p95_us,cv,tflops,gbs,floor_us,of_floor,scratch,wrong";
    if (adds()) columns += ",added_gbs";
    if (steps()) columns += ",schedule,compute_us,communication_us,exposed_us,hidden,landed,received";
    return columns + "\n";
  }
  const ModelShape& m = job_.shape;
  std::string text = fmt::format("# tandem bench {}: kernels {}{}, on {}\n", to_string(job_.operation), header_.kernels,
                                 header_.route.empty() ? "" : ", over " + header_.route, header_.device);
  text += fmt::format("# {}: H {}, Hi {}, d {}, K {}; indexer inputs {}\n", job_.model, m.heads, m.index_heads, m.dim,
                      m.topk, tandem::to_string(job_.index_dtype));
  text += fmt::format("# {} iterations after {} warm-ups; the slowest rank's times: {}\n", job_.common.iterations,
                      job_.common.warmup, header_.timing);
  if (job_.emulated_ranks > 0)
    text += fmt::format("# each rank has the queries of one rank of {}, the others send it all else\n",
                        job_.emulated_ranks);
  if (job_.common.slow_link > 1) text += fmt::format("# every byte travels {} times\n", job_.common.slow_link);
  if (const auto rates = rates_of(job_.common.device)) {
    text += fmt::format("# floors at {:.0f} TFLOP/s bf16, {:.0f} e4m3, {:.1f} TB/s\n", rates->bf16_flops / 1e12,
                        rates->e4m3_flops / 1e12, rates->bytes / 1e12);
  }
  if (steps()) {
    text +=
        fmt::format("#{:>9} {:>9} {:>9} {:>11} {:>6} {:>11} {:>11} {:>10} {:>8} {:>8} {:>10} {:>7} {:>9} {:>9} {:>6}\n",
                    "tokens", "queries", "schedule", "time", "CV", "kernels", communication_title(job_.operation),
                    "exposed", "hidden", "TFLOP/s", "floor", "of it", "landed", "scratch", "#wrong");
    return text +
           fmt::format("#{:>9} {:>9} {:>9} {:>11} {:>6} {:>11} {:>11} {:>10} {:>8} {:>8} {:>10} {:>7} {:>9} {:>9}\n",
                       "", "", "", "(us)", "(%)", "(us)", "(us)", "(us)", "(%)", "", "(us)", "(%)", "(MiB)", "(MiB)");
  }
  text += fmt::format("#{:>9} {:>13} {:>10} {:>10} {:>11} {:>11} {:>6} {:>8} {:>9} {:>10} {:>7} {:>9} {:>6}\n", "keys",
                      "queries", "pattern", "pairs", "time", "p95", "CV", "TFLOP/s", "GB/s", "floor", "of it",
                      "scratch", adds() ? "#wrong  adds GB/s" : "#wrong");
  return text + fmt::format("#{:>9} {:>13} {:>10} {:>10} {:>11} {:>11} {:>6} {:>8} {:>9} {:>10} {:>7} {:>9}\n", "", "",
                            "", "(1e6)", "(us)", "(us)", "(%)", "", "", "(us)", "(%)", "(MiB)");
}

std::string ComputeReport::kernel_line(const ComputeRow& row) const {
  return fmt::format(
      " {:>9} {:>13} {:>10} {:>10.2f} {:>11.2f} {:>11.2f} {:>6.1f} {:>8} {:>9.1f} {:>10} {:>7} {:>9.1f} {:>6}{}\n",
      row.keys, queries_of(row), to_string(row.pattern), static_cast<double>(row.pairs) / 1e6, row.us.median,
      row.us.p95, 100 * row.us.cv, number(if_any(row.teraflops()), 2), row.gigabytes(), number(row.floor_us, 1),
      number(percent(row.of_floor()), 1), static_cast<double>(row.scratch) / mib, wrong_of(row),
      adds() ? fmt::format(" {:>10.1f}", row.added_gigabytes()) : "");
}

std::string ComputeReport::step_line(const ComputeRow& row) const {
  const StepFigures& s = *row.step;
  return fmt::format(
      " {:>9} {:>9} {:>9} {:>11.2f} {:>6.1f} {:>11.2f} {:>11.2f} {:>10.2f} {:>8} {:>8.2f} {:>10} {:>7} {:>9.1f} "
      "{:>9.1f} {:>6}\n",
      row.keys, row.queries, to_string(s.schedule), row.us.median, 100 * row.us.cv, s.compute_us, s.communication_us,
      s.exposed_us, number(percent(s.hidden()), 1), row.teraflops(), number(row.floor_us, 1),
      number(percent(row.of_floor()), 1), s.landed_bytes / mib, static_cast<double>(row.scratch) / mib, wrong_of(row));
}

std::string ComputeReport::csv_line(const ComputeRow& row) const {
  std::string line =
      fmt::format("{},{},{},{},{},{:.3f},{:.3f},{:.5f},{},{:.4f},{},{},{},{}", to_string(job_.operation), row.keys,
                  row.queries, row.step ? "N/A" : to_string(row.pattern), row.pairs, row.us.median, row.us.p95,
                  row.us.cv, number(if_any(row.teraflops()), 4, "N/A"), row.gigabytes(), number(row.floor_us, 3, "N/A"),
                  number(row.of_floor(), 4, "N/A"), row.scratch, wrong_of(row));
  if (adds()) line += fmt::format(",{:.4f}", row.added_gigabytes());
  if (row.step) {
    const StepFigures& s = *row.step;
    line +=
        fmt::format(",{},{:.3f},{:.3f},{:.3f},{},{:.0f},{:.0f}", to_string(s.schedule), s.compute_us,
                    s.communication_us, s.exposed_us, number(s.hidden(), 4, "N/A"), s.landed_bytes, s.received_bytes);
  }
  return line + "\n";
}

std::string ComputeReport::add(const ComputeRow& row) {
  rows_.push_back(row);
  wrong_ += static_cast<std::uint64_t>(row.verdict.wrong);
  if (job_.common.json) return "";
  if (job_.common.csv) return csv_line(row);
  std::string text = steps() ? step_line(row) : kernel_line(row);
  if (row.late > 0) text += fmt::format("#   in {} measurements a GPU waited for its host\n", row.late);
  return text;
}

std::string ComputeReport::end() const {
  if (job_.common.json) return as_json().dump() + "\n";
  if (job_.common.csv || !job_.common.check) return "";
  std::int64_t rows = 0;
  for (const ComputeRow& row : rows_) rows += row.verdict.rows;
  return fmt::format("# Rows checked: {}, wrong: {} {}\n", rows, wrong_, wrong_ == 0 ? "OK" : "FAILED");
}

nlohmann::ordered_json ComputeReport::as_json() const {
  json results = json::array();
  for (const ComputeRow& row : rows_) results.push_back(json_of(row));
  const BuiltFrom from = built_from();
  std::string command;
  for (const std::string& word : header_.command_line) command += (command.empty() ? "" : " ") + word;
  const ModelShape& m = job_.shape;
  json out = {{"commit", from.commit},
              {"dirty", from.dirty},
              {"command", command},
              {"operation", to_string(job_.operation)},
              {"ranks", job_.common.ranks},
              {"device", header_.device},
              {"kernels", header_.kernels},
              {"model", job_.model},
              {"shape", {{"heads", m.heads}, {"index_heads", m.index_heads}, {"dim", m.dim}, {"topk", m.topk}}},
              {"dtype", tandem::to_string(job_.dtype)},
              {"index_dtype", tandem::to_string(job_.index_dtype)},
              {"timing", header_.timing},
              {"deterministic", job_.deterministic},
              {"iterations", job_.common.iterations},
              {"rates", rates_json(job_.common.device)}};
  if (steps()) {
    out["loss"] = job_.has_loss() ? "sparse" : "none";
    out["layout"] = tandem::to_string(job_.partition);
    out["emulated_ranks"] = job_.emulated_ranks > 0 ? json(job_.emulated_ranks) : json(nullptr);
    out["route"] = header_.route.empty() ? json(nullptr) : json(header_.route);
    out["transport_options"] = job_.common.transport_options;
    out["slow_link"] = job_.common.slow_link;
  }
  out["results"] = std::move(results);
  out["ok"] = wrong_ == 0;
  return out;
}

}  // namespace tandem::cli
