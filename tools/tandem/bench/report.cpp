// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/report.hpp"

#include <fmt/format.h>

#include <map>

#include "tandem/built_from.hpp"

namespace tandem::cli {
namespace {

using json = nlohmann::ordered_json;

struct ElementType {
  const char* name;
  std::uint64_t bytes;
  const char* reduction;
};

ElementType element_of(BenchOperation operation) {
  switch (operation) {
    case BenchOperation::gather:
      return {"bfloat16", 2, "none"};
    case BenchOperation::reduce:
      return {"float", 4, "sum"};
    case BenchOperation::exchange:
      break;
  }
  return {"uint8", 1, "none"};
}

// Of `row`, over that of tandem: above 1 tandem is faster.
double ratio_of(const std::vector<BenchRow>& rows, const BenchRow& row) {
  return rows.front().us.median > 0 ? row.us.median / rows.front().us.median : 0;
}

std::string wrong_of(const BenchRow& row) { return row.checked ? std::to_string(row.wrong) : "N/A"; }

std::string in_a_row(const BenchRow& row) {
  return row.back_to_back_us ? fmt::format("{:.2f}", *row.back_to_back_us) : "-";
}

std::string beside_line(const BenchRow& row, int gemms) {
  const BesideFigures& b = *row.beside;
  return fmt::format(
      "#   {}: {} GEMMs {:.1f} -> {:.1f} us beside {} in a row ({:+.1f} %); bandwidth {:.2f} -> {:.2f} GB/s; "
      "chunked {:.1f} us, stalls {:.1f} us\n",
      row.contender, gemms, b.gemm_alone_us, b.gemm_beside_us, b.repeats, b.slow_down(),
      gigabytes_per_second(row.volume.received, b.alone_us), gigabytes_per_second(row.volume.received, b.beside_us),
      b.chunked_us, b.stalls_us);
}

json json_of(const BenchRow& row, double ratio) {
  json out = {{"contender", row.contender},
              {"size", row.volume.size},
              {"per_rank", row.volume.per_rank},
              {"received", row.volume.received},
              {"iterations", row.us.count},
              {"median_us", row.us.median},
              {"p95_us", row.us.p95},
              {"cv", row.us.cv},
              {"back_to_back_us", row.back_to_back_us ? json(*row.back_to_back_us) : json(nullptr)},
              {"algbw", row.algorithm_rate()},
              {"busbw", row.bus_rate()},
              {"ratio", ratio},
              {"wrong", row.checked ? json(row.wrong) : json(nullptr)},
              {"late", row.late}};
  if (!row.beside) return out;
  const BesideFigures& b = *row.beside;
  out["beside"] = {{"repeats", b.repeats},
                   {"alone_us", b.alone_us},
                   {"beside_us", b.beside_us},
                   {"alone_busbw", gigabytes_per_second(row.volume.received, b.alone_us)},
                   {"beside_busbw", gigabytes_per_second(row.volume.received, b.beside_us)},
                   {"gemm_alone_us", b.gemm_alone_us},
                   {"gemm_beside_us", b.gemm_beside_us},
                   {"slow_down_percent", b.slow_down()},
                   {"chunked_us", b.chunked_us},
                   {"stalls_us", b.stalls_us}};
  return out;
}

}  // namespace

BenchReport::BenchReport(const BenchJob& job, BenchHeader header) : job_(job), header_(std::move(header)) {}

std::string BenchReport::begin() const {
  if (job_.json) return "";
  if (job_.csv)
    return "operation,ranks,size,per_rank,received,median_us,p95_us,cv,algbw,busbw,wrong,contender,back_to_back_us,"
           "ratio\n";
  std::string text =
      fmt::format("# tandem bench {}: {} rank{}{}, on {}\n", to_string(job_.operation), job_.ranks,
                  job_.ranks == 1 ? "" : "s", header_.route.empty() ? "" : " over " + header_.route, header_.device);
  if (!header_.facts.nccl_version.empty()) text += fmt::format("# against NCCL {}\n", header_.facts.nccl_version);
  const std::string how = job_.graph_launches > 0 ? fmt::format("{} launches of a graph of {} iterations",
                                                                job_.graph_launches, job_.iterations)
                                                  : fmt::format("{} iterations", job_.iterations);
  text += fmt::format("# {} after {} warm-ups; the slowest rank's times: {}\n", how, job_.warmup, header_.facts.timing);
  if (job_.slow_link > 1) text += fmt::format("# every byte travels {} times\n", job_.slow_link);
  text += "#\n";
  text +=
      fmt::format("#{:>12} {:>12} {:>9} {:>6} {:>4} {:>12} {:>10} {:>8} {:>8} {:>8} {:>10} {:>6} {:>10} {:>6}  {}\n",
                  "size", "count", "type", "redop", "root", "per rank", "time", "algbw", "busbw", "#wrong", "p95", "CV",
                  "in a row", "ratio", "contender");
  text += fmt::format("#{:>12} {:>12} {:>9} {:>6} {:>4} {:>12} {:>10} {:>8} {:>8} {:>8} {:>10} {:>6} {:>10}\n", "(B)",
                      "(elements)", "", "", "", "(B)", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(%)", "(us)");
  return text;
}

std::string BenchReport::table_row(const BenchRow& row, double ratio) const {
  const ElementType element = element_of(job_.operation);
  return fmt::format(
      " {:>12} {:>12} {:>9} {:>6} {:>4} {:>12} {:>10.2f} {:>8.2f} {:>8.2f} {:>8} {:>10.2f} {:>6.1f} {:>10} {:>6.2f}  "
      "{}\n",
      row.volume.size, row.volume.per_rank / element.bytes, element.name, element.reduction, -1, row.volume.per_rank,
      row.us.median, row.algorithm_rate(), row.bus_rate(), wrong_of(row), row.us.p95, 100 * row.us.cv, in_a_row(row),
      ratio, row.contender);
}

std::string BenchReport::csv_row(const BenchRow& row, double ratio) const {
  return fmt::format("{},{},{},{},{},{:.3f},{:.3f},{:.5f},{:.4f},{:.4f},{},{},{},{:.4f}\n", to_string(job_.operation),
                     job_.ranks, row.volume.size, row.volume.per_rank, row.volume.received, row.us.median, row.us.p95,
                     row.us.cv, row.algorithm_rate(), row.bus_rate(), wrong_of(row), row.contender,
                     row.back_to_back_us ? fmt::format("{:.3f}", *row.back_to_back_us) : "N/A", ratio);
}

std::string BenchReport::add(const std::vector<BenchRow>& rows) {
  sizes_.push_back(rows);
  std::string text;
  for (const BenchRow& row : rows) {
    wrong_ += row.wrong;
    if (job_.json) continue;
    text += job_.csv ? csv_row(row, ratio_of(rows, row)) : table_row(row, ratio_of(rows, row));
  }
  for (const BenchRow& row : rows) {
    if (row.late > 0 && !job_.json && !job_.csv)
      text += fmt::format("#   {}: in {} measurements a GPU waited for its host\n", row.contender, row.late);
    if (row.beside && !job_.json && !job_.csv) text += beside_line(row, job_.gemms);
  }
  return text;
}

std::string BenchReport::end() const {
  if (job_.json) return as_json().dump() + "\n";
  if (job_.csv) return "";
  std::string text = fmt::format("# Out of bounds values : {} {}\n", wrong_, wrong_ == 0 ? "OK" : "FAILED");
  std::map<std::string, std::pair<double, int>> sums;
  for (const auto& rows : sizes_) {
    for (const BenchRow& row : rows) {
      sums[row.contender].first += row.bus_rate();
      ++sums[row.contender].second;
    }
  }
  for (const auto& [contender, sum] : sums) {
    text += fmt::format("# Avg bus bandwidth    : {:.4f}{}\n", sum.first / sum.second,
                        sums.size() > 1 ? " of " + contender : "");
  }
  return text;
}

nlohmann::ordered_json BenchReport::as_json() const {
  json results = json::array();
  for (const auto& rows : sizes_) {
    for (const BenchRow& row : rows) results.push_back(json_of(row, ratio_of(rows, row)));
  }
  const BuiltFrom from = built_from();
  std::string command;
  for (const std::string& word : header_.command_line) command += (command.empty() ? "" : " ") + word;
  json out = {{"commit", from.commit},
              {"dirty", from.dirty},
              {"command", command},
              {"operation", to_string(job_.operation)},
              {"ranks", job_.ranks},
              {"transport", job_.transport},
              {"route", header_.route.empty() ? json(nullptr) : json(header_.route)},
              {"device", header_.device},
              {"nccl", header_.facts.nccl_version.empty() ? json(nullptr) : json(header_.facts.nccl_version)},
              {"timing", header_.facts.timing},
              {"iterations", job_.iterations},
              {"graph_launches", job_.graph_launches},
              {"gemms", job_.gemms},
              {"transport_options", job_.transport_options},
              {"slow_link", job_.slow_link},
              {"results", std::move(results)},
              {"ok", wrong_ == 0}};
  return out;
}

}  // namespace tandem::cli
