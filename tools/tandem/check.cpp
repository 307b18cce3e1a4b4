// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include "comparison.hpp"
#include "inputs.hpp"
#include "process.hpp"
#include "progress.hpp"
#include "rank_run.hpp"
#include "sample.hpp"
#include "tandem/error.hpp"

namespace tandem::cli {
namespace {

constexpr double fp32_bound = 2e-5;
constexpr double bf16_wire_bound = 0x1p-8;  // one rounding of each contribution is 2^-9
constexpr std::int64_t block_rows = 256;    // of inputs made, and at most of results computed, at once

std::vector<std::int64_t> positions_of(const std::vector<RowRange>& ranges) {
  std::vector<std::int64_t> positions;
  for (const RowRange& r : ranges) {
    for (std::int64_t p = r.begin; p < r.end; ++p) positions.push_back(p);
  }
  return positions;
}

std::vector<double> decode_rows(const Tensor& tensor, std::span<const std::int64_t> rows) {
  std::vector<double> all;
  for (const std::int64_t row : rows) {
    const std::vector<double> values = decode_row(tensor, row);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void append_row(std::vector<float>& target, const Tensor& tensor, std::int64_t row) {
  for (const double v : decode_row(tensor, row)) target.push_back(static_cast<float>(v));
}

// The sets that the ranks selected for the queries. What a query cannot have selected is left out, and its row is a
// mismatch.
reference::Lists selected_lists(const reference::Problem& p, const std::vector<std::int64_t>& queries,
                                const DsaOutputs& outputs, std::vector<char>& malformed) {
  reference::Lists lists(queries.size());
  malformed.assign(queries.size(), 0);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::int32_t* row = outputs.indices.data_as<std::int32_t>() + queries[i] * p.topk;
    const std::int64_t length = outputs.length.data_as<std::int32_t>()[queries[i]];
    bool good = length == std::min(p.topk, p.end[i] - p.begin[i]);
    for (std::int64_t k = 0; k < p.topk; ++k) {
      const bool inside = k < length;
      const std::int64_t least = lists[i].empty() ? p.begin[i] : lists[i].back() + 1;
      const bool fits = inside ? row[k] >= least && row[k] < p.end[i] : row[k] == -1;
      if (inside && fits) lists[i].push_back(row[k]);
      good = good && fits;
    }
    malformed[i] = good ? 0 : 1;
  }
  return lists;
}

void judge_selection(const reference::Problem& p, const reference::Lists& lists, const std::vector<char>& malformed,
                     std::int64_t stride, Progress& progress, CheckResult& result) {
  std::int64_t chooser = 0;
  progress.start("checking the top-k", p.rows);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    progress.reach(row);
    const auto i = static_cast<std::size_t>(row);
    if (malformed[i] != 0) {
      ++result.topk_mismatches;
      continue;
    }
    // A well-formed list of a row that takes all it sees is right.
    if (p.end[i] - p.begin[i] <= p.topk || chooser++ % stride != 0) continue;
    const reference::SetVerdict verdict = reference::compare_topk(p, row, lists[i]);
    if (verdict == reference::SetVerdict::mismatch) ++result.topk_mismatches;
    if (verdict == reference::SetVerdict::near_tie) ++result.topk_near_ties;
  }
}

void add_to(std::vector<double>& sum, const std::vector<double>& terms) {
  if (sum.empty()) sum.resize(terms.size());
  for (std::size_t i = 0; i < terms.size(); ++i) sum[i] += terms[i];
}

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

// Few enough that progress shows where rows are expensive, enough for all cores.
std::int64_t rows_at_once(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 32, std::min(std::int64_t{4} * cores(), block_rows), block_rows);
}

// Compares with the gradients on whichever side of relu's kinks the ranks saw; returns how many were not the
// reference's.
std::int64_t compare_all(const reference::Problem& p, const reference::Lists& lists, const CheckSample& sample,
                         const std::vector<std::int64_t>& queries, const Results& results, Progress& progress,
                         std::vector<Comparison>& comparisons) {
  std::vector<double> dkv(static_cast<std::size_t>(p.keys * p.dim));
  std::vector<double> d_index_k(static_cast<std::size_t>(p.keys * reference::index_dim));
  std::int64_t turned = 0;
  const std::int64_t portion_rows = rows_at_once(p.rows);
  progress.start("checking", p.rows);
  for (std::int64_t first = 0; first < p.rows; first += portion_rows) {
    progress.reach(first);
    const reference::Portion portion{first, std::min(first + portion_rows, p.rows)};
    const std::span<const std::int64_t> rows(queries.data() + portion.begin, queries.data() + portion.end);
    const reference::Attention a = reference::attention(p, lists, portion);
    reference::IndexerLoss l = reference::indexer_loss(p, &lists, portion);
    turned += reference::settle_kinks(p, portion, l, decode_rows(results.gradients.d_index_q, rows));
    add_to(dkv, a.dkv);
    add_to(d_index_k, l.d_index_k);
    for (Comparison& c : comparisons) {
      c.add_rows(rows, {a.out, a.lse, a.dq, l.d_index_q, l.d_index_w, l.loss, l.magnitude});
    }
  }
  for (const RowRange& keys : sample.complete_keys) {
    for (Comparison& c : comparisons) c.add_keys(keys, dkv, d_index_k);
  }
  return turned;
}

// Pads: out, gradients and loss exactly 0, lse -inf, no list.
std::int64_t count_dead_row_faults(const SequenceLayout& layout, const Results& results) {
  const DsaOutputs& o = results.outputs;
  const DsaGradients& g = results.gradients;
  const auto all = [](const Tensor& t, std::int64_t row, double value) {
    const std::vector<double> values = decode_row(t, row);
    return std::all_of(values.begin(), values.end(), [value](double v) { return v == value; });
  };
  std::int64_t faults = 0;
  for (std::int64_t row = 0; row < layout.total_rows(); ++row) {
    if (layout.is_real(row)) continue;
    bool good = all(o.lse, row, -std::numeric_limits<double>::infinity()) && o.length.data_as<std::int32_t>()[row] == 0;
    for (const Tensor* t : {&o.out, &o.loss, &g.dq, &g.dkv, &g.d_index_q, &g.d_index_k, &g.d_index_w}) {
      good = good && all(*t, row, 0.0);
    }
    const std::int64_t k = o.indices.row_elements();
    const std::int32_t* list = o.indices.data_as<std::int32_t>() + row * k;
    good = good && std::all_of(list, list + k, [](std::int32_t i) { return i == -1; });
    faults += good ? 0 : 1;
  }
  return faults;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const auto bytes = static_cast<std::size_t>(a.size(0)) * a.row_bytes();
  return a.size(0) == b.size(0) && a.row_bytes() == b.row_bytes() &&
         std::equal(static_cast<const std::byte*>(a.data()), static_cast<const std::byte*>(a.data()) + bytes,
                    static_cast<const std::byte*>(b.data()));
}

double bound_of(const DsaJob& job, const std::string& name, const double* unsharded) {
  double bound = fp32_bound;
  if (unsharded != nullptr) bound = std::max(bound, 2 * *unsharded);
  const bool travels = name == "dkv" || name == "d_index_k";
  if (job.wire == DType::bf16 && job.ranks > 1 && travels) bound = std::max(bound, bf16_wire_bound);
  return bound;
}

}  // namespace

bool CheckResult::ok() const { return faults().empty(); }

std::vector<std::string> CheckResult::faults() const {
  std::vector<std::string> list;
  for (const TensorError& e : errors) {
    if (!(e.error <= e.bound))
      list.push_back(fmt::format("{}: error {:.2e}, at most {:.2e}", e.name, e.error, e.bound));
  }
  if (topk_mismatches > 0) list.push_back(fmt::format("{} rows selected the wrong keys", topk_mismatches));
  if (dead_row_faults > 0) list.push_back(fmt::format("{} pad rows are not exactly zero", dead_row_faults));
  if (unsharded_sets_differ) list.emplace_back("the selected keys differ from those of the unsharded run");
  return list;
}

reference::Problem make_problem(const DsaJob& job, const SequenceLayout& layout,
                                const std::vector<std::int64_t>& queries) {
  reference::Problem p;
  p.rows = std::ssize(queries);
  p.keys = layout.total_rows();
  p.heads = job.shape.heads;
  p.index_heads = job.shape.index_heads;
  p.dim = job.shape.dim;
  p.topk = job.shape.topk;
  // The operator computes with the float nearest to this; the difference is an error of the operator.
  p.scale = 1.0 / std::sqrt(static_cast<double>(p.dim));
  p.loss_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(layout.real_rows(), 1));
  const InputGenerator generator(job);
  const Device device = Device::host();
  auto query = queries.begin();
  for (std::int64_t first = 0; first < p.keys; first += block_rows) {
    const RowRange block{first, std::min(first + block_rows, p.keys)};
    const InputRows rows = generator.rows(device, layout, {&block, 1});
    for (std::int64_t row = 0; row < block.size(); ++row) {
      append_row(p.kv, rows.inputs.kv, row);
      append_row(p.index_k, rows.inputs.index_k, row);
      if (rows.inputs.index_k_scale.valid()) append_row(p.index_k_scale, rows.inputs.index_k_scale, row);
      if (query == queries.end() || *query != block.begin + row) continue;
      append_row(p.q, rows.inputs.q, row);
      append_row(p.index_q, rows.inputs.index_q, row);
      append_row(p.index_w, rows.inputs.index_w, row);
      append_row(p.dout, rows.dout, row);
      const RowRange visible = layout.visible(*query);
      p.begin.push_back(visible.begin);
      p.end.push_back(visible.end);
      ++query;
    }
  }
  return p;
}

CheckResult check(const DsaJob& job, const Results& results) {
  const SequenceLayout layout = job.layout(job.ranks);
  const CheckSample sample = choose_sample(layout, job.shape, {});
  if (!sample.cut.empty()) {
    write_all(STDERR_FILENO, fmt::format("tandem: checking all would take minutes; left out: {}\n", sample.cut));
  }
  const std::vector<std::int64_t> queries = positions_of(sample.rows);
  Progress progress;
  CheckResult result;
  result.cut = sample.cut;
  result.checked_rows = sample.row_count;
  result.rows = layout.real_rows();
  result.dead_row_faults = count_dead_row_faults(layout, results);
  const double* losses = results.outputs.loss.data_as<double>();
  result.loss = std::accumulate(losses, losses + layout.total_rows(), 0.0);

  const reference::Problem problem = make_problem(job, layout, queries);
  std::vector<char> malformed;
  const reference::Lists lists = selected_lists(problem, queries, results.outputs, malformed);
  judge_selection(problem, lists, malformed, sample.topk_stride, progress, result);

  std::vector<Comparison> comparisons{Comparison(results)};
  std::unique_ptr<RankRun> unsharded;
  if (job.dtype == DType::bf16 || job.indexer_dtype() == DType::bf16) {
    unsharded = std::make_unique<RankRun>(job, 1, 0, cores());
    unsharded->run({}, false);
    comparisons.emplace_back(unsharded->results());
    result.unsharded_sets_differ = !same_bytes(results.outputs.indices, unsharded->results().outputs.indices);
  }
  result.relu_near_ties = compare_all(problem, lists, sample, queries, results, progress, comparisons);
  const std::vector<Comparison::Named> errors = comparisons[0].errors();
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const bool compared = comparisons.size() > 1;
    const double of_unsharded = compared ? comparisons[1].errors()[i].error : 0.0;
    result.errors.push_back(
        {errors[i].name, errors[i].error, bound_of(job, errors[i].name, compared ? &of_unsharded : nullptr)});
  }
  return result;
}

}  // namespace tandem::cli
