// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.hpp"

namespace tandem::cli {
namespace {

using json = nlohmann::ordered_json;  // keys stay in the order of the documentation

// What JSON cannot hold becomes null, which no reader takes for a good value.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

template <class Get>
json per_rank(const std::vector<RankSummary>& ranks, Get get) {
  json list = json::array();
  for (const RankSummary& rank : ranks) list.push_back(get(rank));
  return list;
}

json memory_json(const DsaMemory& m) {
  return {{"inputs", m.inputs},   {"outputs", m.outputs},     {"landed", m.landed},
          {"scratch", m.scratch}, {"gradients", m.gradients}, {"accumulators", m.accumulators},
          {"staging", m.staging}, {"tables", m.tables},       {"total", m.total()},
          {"saved", m.saved}};
}

json errors_json(const CheckResult& check) {
  json errors = json::object();
  for (const TensorError& e : check.errors) errors[e.name] = number(e.error);
  return errors;
}

std::string time(double us) { return detail::format_duration(std::chrono::nanoseconds(std::llround(us * 1e3))); }

// As the options call it.
const char* name_of(DType dtype) {
  return dtype == DType::f32 ? "fp32" : dtype == DType::f8e4m3 ? "e4m3" : to_string(dtype);
}

std::string headline(const Report& report) {
  const DsaJob& job = report.job;
  const SequenceLayout& layout = report.layout;
  std::string text = job.ranks == 1 ? "1 rank" : fmt::format("{} ranks over {}", job.ranks, report.transport());
  fmt::format_to(std::back_inserter(text), ", {}; {} document{}, {} rows ({} tokens), {}\n",
                 to_string(layout.partition()), layout.documents(), layout.documents() == 1 ? "" : "s",
                 layout.total_rows(), layout.real_rows(), job.texts.empty() ? "random inputs" : "inputs from text");
  std::string types = name_of(job.dtype);
  if (job.indexer_dtype() != job.dtype) types += fmt::format(", its indexer {}", name_of(job.indexer_dtype()));
  fmt::format_to(std::back_inserter(text),
                 "model {}: H {}, Hi {}, d {}, K {}, {}{}; kernels {}; chunks of at most {} tokens\n\n", job.model,
                 job.shape.heads, job.shape.index_heads, job.shape.dim, job.shape.topk, types,
                 job.wire == DType::bf16 ? ", gradients of keys travel as bf16" : "", report.kernels(),
                 job.plan_options(job.ranks, {}).chunk_tokens);
  return text;
}

void add_rank_table(std::string& text, const Report& report) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{:>4} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "rank", "tokens", "needed", "gathered",
                 "reduced", "transfer", "exposed", "compute");
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const RankSummary& r = report.ranks[i];
    fmt::format_to(out, "{:>4} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", i, r.tokens,
                   detail::format_bytes(r.needed_bytes), detail::format_bytes(r.gathered_bytes),
                   detail::format_bytes(r.reduced_bytes), time(r.transfer_us), time(r.exposed_us), time(r.compute_us));
  }
  text +=
      "needed: keys and latents that the rank's queries see; gathered: of these, received in forward; reduced:\n"
      "gradients received in backward; exposed: the sum of stalls of the compute stream, chunk by chunk\n";
  fmt::format_to(out, "moved {:.1f} % of what a full all-gather moves\n", 100 * report.moved_fraction());
}

void add_memory_table(std::string& text, const Report& report) {
  auto out = std::back_inserter(text);
  constexpr const char* row = "{:>4} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}\n";
  text += "\nmemory\n";
  fmt::format_to(out, fmt::runtime(row), "rank", "inputs", "outputs", "landed", "scratch", "gradients", "accumulators",
                 "staging", "tables", "total", "saved");
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const DsaMemory& m = report.ranks[i].memory;
    using detail::format_bytes;
    fmt::format_to(out, fmt::runtime(row), i, format_bytes(m.inputs), format_bytes(m.outputs), format_bytes(m.landed),
                   format_bytes(m.scratch), format_bytes(m.gradients), format_bytes(m.accumulators),
                   format_bytes(m.staging), format_bytes(m.tables), format_bytes(m.total()), format_bytes(m.saved));
  }
  text += "total: the most that is allocated at once; saved: of it, what lives until backward beside the outputs\n";
}

void add_check_table(std::string& text, const CheckResult& check) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "\nagainst the unsharded float64 reference, {} of {} rows\n", check.checked_rows, check.rows);
  if (!check.cut.empty()) fmt::format_to(out, "left out: {}\n", check.cut);
  fmt::format_to(out, "{:<10} {:>12} {:>12}\n", "", "rel. error", "at most");
  for (const TensorError& e : check.errors) {
    fmt::format_to(out, "{:<10} {:>12.2e} {:>12.2e}{}\n", e.name, e.error, e.bound,
                   e.error <= e.bound ? "" : "  too much");
  }
  fmt::format_to(out, "top-k: {} rows differ, {} near ties; {} relu near ties; loss {:.6g}\n", check.topk_mismatches,
                 check.topk_near_ties, check.relu_near_ties, check.loss);
}

}  // namespace

std::uint64_t gathered_row_bytes(const DsaJob& job) {
  const std::uint64_t scale = job.indexer_dtype() == DType::f8e4m3 ? sizeof(float) : 0;
  return static_cast<std::uint64_t>(index_dim) * size_of(job.indexer_dtype()) + scale +
         static_cast<std::uint64_t>(job.shape.dim) * size_of(job.dtype);
}

double Report::moved_fraction() const {
  std::uint64_t moved = 0;
  for (const RankSummary& rank : ranks) moved += rank.gathered_bytes;
  const double full = static_cast<double>(layout.total_rows()) * static_cast<double>(job.ranks - 1) *
                      static_cast<double>(gathered_row_bytes(job));
  return full > 0 ? static_cast<double>(moved) / full : 0.0;
}

std::vector<std::string> Report::paths() const {
  std::set<std::string> all;
  for (const RankSummary& rank : ranks) {
    std::string_view rest = rank.paths;
    for (std::size_t comma = 0; (comma = rest.find(',')) != std::string_view::npos; rest.remove_prefix(comma + 1)) {
      all.emplace(rest.substr(0, comma));
    }
  }
  return {all.begin(), all.end()};
}

std::string Report::transport() const {
  if (!job.transport.empty()) return job.transport;
  const std::vector<std::string> used = paths();
  return used.empty() ? "none" : fmt::format("{}", fmt::join(used, ","));
}

nlohmann::ordered_json Report::to_json() const {
  json report = {
      {"ranks", job.ranks},
      {"tokens", per_rank(ranks, [](const RankSummary& r) { return r.tokens; })},
      {"documents", layout.documents()},
      {"layout", to_string(layout.partition())},
      {"transport", transport()},
      {"device", job.device == DeviceKind::cuda ? "cuda" : "host"},
      {"kernels", kernels()},
      {"gathered_bytes", per_rank(ranks, [](const RankSummary& r) { return r.gathered_bytes; })},
      {"moved_fraction", moved_fraction()},
      {"exposed_us", per_rank(ranks, [](const RankSummary& r) { return r.exposed_us; })},
      {"transfer_us", per_rank(ranks, [](const RankSummary& r) { return r.transfer_us; })},
      {"paths", paths()},
      {"topk_mismatches", check ? json(check->topk_mismatches) : json(nullptr)},
      {"topk_near_ties", check ? json(check->topk_near_ties) : json(nullptr)},
      {"max_rel_error", check ? errors_json(*check) : json(nullptr)},
      {"ok", ok()},
  };
  if (check) {
    report["check"] = {{"checked_rows", check->checked_rows},
                       {"rows", check->rows},
                       {"cut", check->cut},
                       {"relu_near_ties", check->relu_near_ties},
                       {"dead_row_faults", check->dead_row_faults},
                       {"loss", number(check->loss)}};
  }
  if (job.memory) report["memory"] = per_rank(ranks, [](const RankSummary& r) { return memory_json(r.memory); });
  return report;
}

std::string Report::to_text() const {
  std::string text = headline(*this);
  add_rank_table(text, *this);
  if (job.memory) add_memory_table(text, *this);
  if (check) add_check_table(text, *check);
  text += ok() ? "\nok\n" : "\nnot ok\n";
  if (!job.trace.empty()) {
    text += fmt::format("the timeline of all ranks is in {}: open it at https://ui.perfetto.dev\n", job.trace);
  }
  return text;
}

}  // namespace tandem::cli
