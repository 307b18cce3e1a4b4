// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "comm/plugin_host.hpp"
#include "tandem/bench/compute_options.hpp"
#include "tandem/files.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

constexpr std::uint64_t mib = 1U << 20;

int integer(const std::optional<std::string>& text, const char* option, std::int64_t otherwise, std::int64_t min,
            std::int64_t max) {
  return static_cast<int>(text ? parse_integer(option, *text, min, max) : otherwise);
}

// Sizes from the smallest to the largest, each the one before times the factor.
std::vector<std::uint64_t> sizes_of(const BenchArguments& a) {
  const std::uint64_t first = a.min_bytes ? parse_bytes("--minbytes", *a.min_bytes) : mib;
  const std::uint64_t last = a.max_bytes ? parse_bytes("--maxbytes", *a.max_bytes) : std::max(first, 64 * mib);
  const auto factor = static_cast<std::uint64_t>(integer(a.step_factor, "--stepfactor", 2, 2, 1024));
  if (last < first) throw UsageError(fmt::format("--maxbytes: {} is less than --minbytes, {}", last, first));
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = first; size <= last; size *= factor) sizes.push_back(size);
  return sizes;
}

void choose_transport(const BenchArguments& a, BenchJob& job) {
  job.transport = a.transport.value_or(job.device == DeviceKind::cuda ? "cuda_p2p" : "tcp");
  job.transport_chosen = a.transport.has_value();
  std::vector<std::string> names;
  for (const tandem_transport* t : detail::static_transports()) names.emplace_back(t->name);
  const tandem_transport* const transport =
      detail::static_transports()[parse_choice("--transport", job.transport, names)];
  for (const std::string& option : a.transport_options) {
    const std::size_t equals = option.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw UsageError(fmt::format("--option: '{}' is not KEY=VALUE; tandem info lists the keys", option));
    job.transport_options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  job.slow_link = integer(a.slow_link, "--slow-link", 1, 1, 1000);
  const std::string_view help = transport->option_help;
  if (job.slow_link > 1 && help.find("repeat:") == std::string_view::npos) {
    throw UsageError(fmt::format("--slow-link: transport {} cannot send its bytes more than once; tcp and cuda_p2p can",
                                 job.transport));
  }
}

// "gemm" or "gemm:n".
int parse_beside(std::string_view text) {
  const std::size_t colon = text.find(':');
  parse_choice("--beside", text.substr(0, colon), {"gemm"});
  if (colon == std::string_view::npos) return 4;
  return static_cast<int>(parse_integer("--beside", text.substr(colon + 1), 1, 1000));
}

void choose_comparisons(const BenchArguments& a, BenchJob& job) {
  const auto needs_gpu = [&](const char* option) {
    if (job.device != DeviceKind::cuda) throw UsageError(fmt::format("{}: only with --device cuda", option));
  };
  if (a.graph_launches) needs_gpu("--cudagraph");
  job.graph_launches = integer(a.graph_launches, "--cudagraph", 0, 0, 1'000'000);
  if (a.beside) {
    needs_gpu("--beside");
    job.gemms = parse_beside(*a.beside);
  }
  if (!a.versus) return;
  needs_gpu("--versus");
  parse_choice("--versus", *a.versus, {"nccl"});
  if (job.operation == BenchOperation::exchange)
    throw UsageError("--versus: nccl has no counterpart of an exchange; use gather or reduce");
  job.versus_nccl = true;
}

}  // namespace

std::string to_string(BenchOperation operation) {
  switch (operation) {
    case BenchOperation::gather:
      return "gather";
    case BenchOperation::reduce:
      return "reduce";
    case BenchOperation::exchange:
      return "exchange";
  }
  return "?";
}

std::uint64_t parse_bytes(std::string_view option, std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
  double factor = 1;
  if (unit == "K" || unit == "k") factor = 1024;
  if (unit == "M" || unit == "m") factor = 1024.0 * 1024;
  if (unit == "G" || unit == "g") factor = 1024.0 * 1024 * 1024;
  const bool known = unit.empty() || factor > 1;
  if (error != std::errc{} || !known || !std::isfinite(value) || value * factor < 1 || value * factor > 1e12)
    throw UsageError(fmt::format("{}: '{}' is not a number of bytes such as 65536, 64K or 1.5M", option, text));
  return static_cast<std::uint64_t>(value * factor);
}

void choose_common(const BenchArguments& a, const std::optional<LaunchedRank>& launched, BenchJob& job) {
  job.ranks = integer(a.ranks, "--ranks", launched ? launched->size : 2, 1, 1024);
  if (launched && job.ranks != launched->size)
    throw UsageError(fmt::format("--ranks: {} given, the launcher started {}", job.ranks, launched->size));
  if (a.device && parse_choice("--device", *a.device, {"host", "cuda"}) == 1) job.device = DeviceKind::cuda;
  choose_transport(a, job);
  job.iterations = integer(a.iterations, "--iters", 20, 1, 1'000'000);
  job.warmup = integer(a.warmup, "--warmup_iters", 5, 0, 1'000'000);
  job.check = integer(a.check, "--check", 1, 0, 1) == 1;
  job.chunk_tokens = integer(a.chunk_tokens, "--chunk-tokens", 0, 1, 1 << 30);
  if (a.timeout) job.timeout = parse_seconds("--timeout", *a.timeout);
  job.json = a.json;
  job.csv = a.csv;
  if (job.json && job.csv) throw UsageError("--csv: not together with --json");
  if (a.output_file) {
    job.output_file = *a.output_file;
    if (!launched || launched->rank == 0) test_writable("--output_file", job.output_file);
  }
}

void expect_none(std::initializer_list<NamedOption> options, const char* operations) {
  for (const NamedOption& option : options) {
    if (option.given) throw UsageError(fmt::format("{}: only with bench {}", option.name, operations));
  }
}

BenchJob make_bench_job(const BenchArguments& a, const std::optional<LaunchedRank>& launched) {
  BenchJob job;
  job.operation =
      static_cast<BenchOperation>(parse_choice("bench", a.operation,
                                               {"gather", "reduce", "exchange", "indexer", "topk", "sparse-fwd",
                                                "sparse-bwd", "dsa-fwd", "dsa-bwd", "dsa-step"}));
  expect_none({{"--model", a.model.has_value()},
               {"--seq-len", a.seq_len.has_value()},
               {"--topk", a.topk.has_value()},
               {"--index-dtype", a.index_dtype.has_value()},
               {"--kernels", a.kernels.has_value()},
               {"--heads", a.heads.has_value()},
               {"--index-heads", a.index_heads.has_value()}},
              compute_operations);
  expect_none(
      {{"--queries", a.queries.has_value()}, {"--share", a.share.has_value()}, {"--pattern", a.pattern.has_value()}},
      kernel_operations);
  expect_none({{"--layout", a.layout.has_value()},
               {"--schedule", a.schedule.has_value()},
               {"--emulate-ranks", a.emulate_ranks.has_value()}},
              step_operations);
  expect_none({{"--deterministic", a.deterministic}}, "sparse-bwd, dsa-bwd or dsa-step");
  expect_none({{"--loss", a.loss.has_value()}}, "dsa-bwd or dsa-step");
  choose_common(a, launched, job);
  choose_comparisons(a, job);
  job.sizes = sizes_of(a);
  return job;
}

}  // namespace tandem::cli
