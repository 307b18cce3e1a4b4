// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/compute_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "tandem/inputs.hpp"
#include "tandem/kernel_sets.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max();  // landed rows are 32-bit
constexpr const char* operation_names[] = {"indexer", "topk",    "sparse-fwd", "sparse-bwd",
                                           "dsa-fwd", "dsa-bwd", "dsa-step"};
constexpr const char* pattern_names[] = {"random", "text", "ascending", "equal"};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = text.find(',', begin);
    parts.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return parts;
    begin = comma + 1;
  }
}

/// Kernels that work on lists, not on scores.
bool has_lists(ComputeOperation operation) {
  return operation == ComputeOperation::sparse_fwd || operation == ComputeOperation::sparse_bwd;
}

bool adds_gradients(ComputeOperation operation) {
  return operation == ComputeOperation::sparse_bwd || operation == ComputeOperation::dsa_bwd ||
         operation == ComputeOperation::dsa_step;
}

void refuse_other_options(const BenchArguments& a, const ComputeJob& job) {
  if (!adds_gradients(job.operation))
    expect_none({{"--deterministic", a.deterministic}}, "sparse-bwd, dsa-bwd or dsa-step");
  expect_none({{"--minbytes", a.min_bytes.has_value()},
               {"--maxbytes", a.max_bytes.has_value()},
               {"--stepfactor", a.step_factor.has_value()},
               {"--cudagraph", a.graph_launches.has_value()},
               {"--versus", a.versus.has_value()},
               {"--beside", a.beside.has_value()}},
              "gather, reduce or exchange");
  if (is_step(job.operation)) {
    expect_none(
        {{"--queries", a.queries.has_value()}, {"--share", a.share.has_value()}, {"--pattern", a.pattern.has_value()}},
        kernel_operations);
    if (!job.has_backward()) expect_none({{"--loss", a.loss.has_value()}}, "dsa-bwd or dsa-step");
    return;
  }
  expect_none({{"--transport", a.transport.has_value()},
               {"--option", !a.transport_options.empty()},
               {"--slow-link", a.slow_link.has_value()},
               {"--chunk-tokens", a.chunk_tokens.has_value()}},
              "gather, reduce, exchange, dsa-fwd, dsa-bwd or dsa-step");
  expect_none({{"--layout", a.layout.has_value()},
               {"--schedule", a.schedule.has_value()},
               {"--emulate-ranks", a.emulate_ranks.has_value()}},
              step_operations);
  expect_none({{"--loss", a.loss.has_value()}}, "dsa-bwd or dsa-step");
  if (job.operation != ComputeOperation::indexer) {
    expect_none({{"--index-dtype", a.index_dtype.has_value()}, {"--index-heads", a.index_heads.has_value()}},
                "indexer, dsa-fwd, dsa-bwd or dsa-step");
  }
  if (!has_lists(job.operation))
    expect_none({{"--heads", a.heads.has_value()}}, "sparse-fwd, sparse-bwd, dsa-fwd, dsa-bwd or dsa-step");
}

// Kernels run on one rank, with no communication.
BenchArguments on_one_rank(const BenchArguments& given, const std::optional<LaunchedRank>& launched) {
  if ((launched && launched->size > 1) || (given.ranks && *given.ranks != "1"))
    throw UsageError("--ranks: kernels are timed on one rank; --share has the rows of a rank of several");
  BenchArguments a = given;
  a.ranks = "1";
  return a;
}

void choose_queries(const BenchArguments& a, bool cuda, ComputeJob& job) {
  if (a.queries && a.share) throw UsageError("--queries and --share exclude each other");
  if (a.share) {
    for (const std::int64_t ranks : parse_integers("--share", *a.share, 1, 1024))
      job.queries.push_back({0, static_cast<int>(ranks)});
    return;
  }
  job.queries = {{a.queries ? parse_integer("--queries", *a.queries, 1, most_rows) : cuda ? 4096 : 128, 0}};
}

void choose_patterns(const BenchArguments& a, ComputeJob& job) {
  const bool scores = !has_lists(job.operation);
  const std::vector<std::string> known(std::begin(pattern_names), std::begin(pattern_names) + (scores ? 4 : 2));
  for (const std::string& name : split(a.pattern.value_or("random")))
    job.patterns.push_back(static_cast<Pattern>(parse_choice("--pattern", name, known)));
}

void choose_step(const BenchArguments& a, ComputeJob& job) {
  if (a.layout && parse_choice("--layout", *a.layout, {"contiguous", "zigzag"}) == 0)
    job.partition = Partition::contiguous;
  const std::size_t schedule =
      a.schedule ? parse_choice("--schedule", *a.schedule, {"overlap", "blocking", "both"}) : 2;
  if (schedule != 1) job.schedules.push_back(Schedule::overlap);
  if (schedule != 0) job.schedules.push_back(Schedule::blocking);
  if (a.emulate_ranks) {
    job.emulated_ranks = static_cast<int>(parse_integer("--emulate-ranks", *a.emulate_ranks, 1, 1024));
    if (job.emulated_ranks < job.common.ranks)
      throw UsageError(fmt::format("--emulate-ranks: {} is fewer than the {} ranks that there are", job.emulated_ranks,
                                   job.common.ranks));
  }
  if (a.loss && parse_choice("--loss", *a.loss, {"none", "sparse"}) == 1) job.loss = IndexerLossKind::sparse;
}

}  // namespace

std::string to_string(ComputeOperation operation) { return operation_names[static_cast<std::size_t>(operation)]; }
std::string to_string(Pattern pattern) { return pattern_names[static_cast<std::size_t>(pattern)]; }
std::string to_string(Schedule schedule) { return schedule == Schedule::overlap ? "overlap" : "blocking"; }

std::optional<ComputeOperation> compute_operation(const std::string& name) {
  const auto* const found = std::find(std::begin(operation_names), std::end(operation_names), name);
  if (found == std::end(operation_names)) return std::nullopt;
  return static_cast<ComputeOperation>(found - std::begin(operation_names));
}

DsaJob ComputeJob::step(std::int64_t seq_len) const {
  DsaJob dsa;
  dsa.ranks = common.ranks;
  dsa.device = common.device;
  dsa.shape = shape;
  dsa.lengths = {seq_len};
  dsa.partition = partition;
  dsa.emulated_ranks = emulated_ranks;
  dsa.chunk_tokens = common.chunk_tokens;
  dsa.dtype = dtype;
  dsa.index_dtype = index_dtype;
  dsa.seed = seed;
  return dsa;
}

DsaConfig ComputeJob::config() const {
  DsaConfig config = config_of(shape);
  config.dtype = dtype;
  config.index_dtype = index_dtype;
  config.loss = loss;
  config.deterministic = deterministic;
  config.keep_landed = has_backward();  // nothing but what this step needs
  return config;
}

ComputeJob make_compute_job(ComputeOperation operation, const BenchArguments& a,
                            const std::optional<LaunchedRank>& launched) {
  ComputeJob job;
  job.operation = operation;
  refuse_other_options(a, job);
  const bool kernels = !is_step(operation);
  choose_common(kernels ? on_one_rank(a, launched) : a, launched, job.common);
  expect_device(job.common.device);
  const bool cuda = job.common.device == DeviceKind::cuda;
  job.kernels = choose_kernels(a.kernels, job.common.device);
  job.deterministic = a.deterministic;
  job.model = a.model.value_or(cuda ? "deepseek-v3.2" : "tiny");
  job.shape = choose_shape(job.model, {a.topk, a.heads, a.index_heads});
  if (a.index_dtype && parse_choice("--index-dtype", *a.index_dtype, {"bf16", "e4m3"}) == 1)
    job.index_dtype = DType::f8e4m3;
  job.seq_lens = a.seq_len ? parse_integers("--seq-len", *a.seq_len, 1, most_rows)
                           : std::vector<std::int64_t>{cuda ? 65536 : 1024};
  if (kernels) {
    choose_queries(a, cuda, job);
    choose_patterns(a, job);
  } else {
    choose_step(a, job);
  }
  return job;
}

}  // namespace tandem::cli
