// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/env.hpp"
#include "base/machine.hpp"
#include "base/text.hpp"
#include "files.hpp"
#include "kernel_sets.hpp"
#include "tandem/kernels.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max();  // positions of lists are 32-bit
constexpr std::int64_t most_ranks = 1024;
constexpr std::int64_t most_heads = 1024;
constexpr std::int64_t most_topk = 1 << 20;
constexpr std::int64_t default_seq_len = 1024;

struct Model {
  const char* name;
  ModelShape shape;
};
constexpr Model models[] = {
    {"tiny", {4, 2, 576, 64}},
    {"deepseek-v3.2", {128, 64, 576, 2048}},
    {"glm-5", {64, 32, 576, 2048}},
};

std::int64_t integer_or(std::string_view option, const std::optional<std::string>& text, std::int64_t min,
                        std::int64_t max, std::int64_t otherwise) {
  return text ? parse_integer(option, *text, min, max) : otherwise;
}

void choose_model(const DsaArguments& a, DsaJob& job) {
  job.model = a.model.value_or(models[0].name);
  job.shape = choose_shape(job.model, {a.topk, a.heads, a.index_heads});
}

void choose_documents(const DsaArguments& a, DsaJob& job) {
  if (a.seq_len && a.docs) throw UsageError("--seq-len and --docs exclude each other");
  if (a.seq_len && !a.input.empty()) throw UsageError("--seq-len and --input exclude each other");
  if (a.docs && !a.input.empty()) throw UsageError("--docs and --input exclude each other");
  if (a.pad_to && !a.docs && a.input.empty()) throw UsageError("--pad-to needs --docs or --input");
  if (a.docs) {
    job.lengths = parse_integers("--docs", *a.docs, 0, most_rows);
  } else if (!a.input.empty()) {
    for (const std::string& path : a.input) {
      job.texts.push_back(read_input_file("--input", path, most_rows));
      job.lengths.push_back(static_cast<std::int64_t>(job.texts.back().size()));
    }
  } else {
    job.lengths = {integer_or("--seq-len", a.seq_len, 1, most_rows, default_seq_len)};
  }
  if (a.pad_to) job.pad_to = parse_integer("--pad-to", *a.pad_to, 0, most_rows);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < job.lengths.size(); ++i) {
    if (job.pad_to && job.lengths[i] > *job.pad_to) {
      throw UsageError(
          fmt::format("--pad-to: {} is smaller than document {}, which has {} tokens", *job.pad_to, i, job.lengths[i]));
    }
    total += job.pad_to.value_or(job.lengths[i]);
    if (total > most_rows) throw UsageError(fmt::format("the documents have more than {} rows together", most_rows));
  }
}

DType choose_dtype(std::string_view option, const std::optional<std::string>& text) {
  return text && parse_choice(option, *text, {"fp32", "bf16"}) == 1 ? DType::bf16 : DType::f32;
}

void choose_device(const DsaArguments& a, DsaJob& job) {
  if (a.device && parse_choice("--device", *a.device, {"host", "cuda"}) == 1) job.device = DeviceKind::cuda;
  expect_device(job.device);
  job.kernels = choose_kernels(a.kernels, job.device);
}

void choose_transport(const DsaArguments& a, DsaJob& job) {
  if (job.device == DeviceKind::cuda) {
    // Left to the communicator, pair by pair, unless one is named.
    job.transport = "";
    const std::vector<std::string> transports{"cuda_p2p", "nccl", "tcp"};
    if (a.transport) job.transport = transports[parse_choice("--transport", *a.transport, transports)];
    return;
  }
  const std::vector<std::string> transports{"tcp", "loopback"};
  job.transport = transports.front();
  if (a.transport) {
    job.transport = transports[parse_choice("--transport", *a.transport, transports)];
  } else if (const std::optional<std::string> chosen = Env::read().transport) {
    job.transport = transports[parse_choice("TANDEM_TRANSPORT", *chosen, transports)];
  }
}

void choose_ranks(const DsaArguments& a, const std::optional<LaunchedRank>& launched, DsaJob& job) {
  choose_transport(a, job);
  job.ranks = static_cast<int>(integer_or("--ranks", a.ranks, 1, most_ranks, launched ? launched->size : 4));
  if (!launched) return;
  if (job.ranks != launched->size) {
    throw UsageError(
        fmt::format("--ranks: {} differs from WORLD_SIZE, which the launcher set to {}", job.ranks, launched->size));
  }
  if (job.transport == "loopback" && launched->size > 1) {
    throw UsageError("--transport: loopback ranks are threads of one process; a launcher made several");
  }
}

// A lower bound of what the ranks of this host need together: rather said here than by whom the system kills first.
void expect_memory(const DsaJob& job) {
  std::int64_t rows = 0;
  for (const std::int64_t length : job.lengths) rows += job.pad_to.value_or(length);
  const std::int64_t row_elements = 2 * job.shape.heads * (job.shape.dim + value_dim);  // q, out and their gradients
  const std::uint64_t bytes = static_cast<std::uint64_t>(rows * row_elements) * size_of(job.dtype);
  if (bytes <= detail::machine_memory()) return;
  throw UsageError(fmt::format("queries, outputs and their gradients of {} rows take {}, this machine has {}", rows,
                               detail::format_bytes(bytes), detail::format_bytes(detail::machine_memory())));
}

// Small shards still get several chunks and blocks, so that there is something to overlap.
std::int64_t part_of_shard(std::int64_t total_rows, int ranks, std::int64_t parts, std::int64_t most) {
  const std::int64_t shard = (total_rows + ranks - 1) / ranks;
  return std::clamp<std::int64_t>((shard + parts - 1) / parts, 1, most);
}

}  // namespace

SequenceLayout emulated_layout(std::int64_t length, int ranks, int emulated, Partition partition) {
  const std::vector<std::int64_t> document{0, length};
  const SequenceLayout shards = partition == Partition::zigzag ? SequenceLayout::zigzag(document, emulated)
                                                               : SequenceLayout::contiguous(document, emulated);
  std::vector<std::int64_t> offsets{0};
  std::vector<std::vector<RowRange>> segments(static_cast<std::size_t>(ranks));
  std::vector<RowRange> keys;
  for (int d = 0; d < ranks; ++d) {
    const std::int64_t first = offsets.back();
    for (int e = 0; e < emulated; ++e) {
      // The shards of others go round among the other ranks.
      const int other = ranks == 1 ? 0 : (d + 1 + e % (ranks - 1)) % ranks;
      for (const RowRange& rows : shards.segments(e)) {
        const RowRange here{first + rows.begin, first + rows.end};
        segments[static_cast<std::size_t>(e == d ? d : other)].push_back(here);
        if (e != d) keys.push_back(here);
      }
    }
    offsets.push_back(first + length);
  }
  const auto ascending = [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; };
  for (std::vector<RowRange>& shard : segments) std::sort(shard.begin(), shard.end(), ascending);
  std::sort(keys.begin(), keys.end(), ascending);
  return SequenceLayout::from_segments(offsets, segments).keys_only(keys);
}

SequenceLayout DsaJob::layout(int over_ranks) const {
  if (emulated_ranks > 0) return emulated_layout(lengths.front(), over_ranks, emulated_ranks, partition);
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> padded{0};
  for (const std::int64_t length : lengths) {
    offsets.push_back(offsets.back() + length);
    padded.push_back(padded.back() + pad_to.value_or(length));
  }
  return partition == Partition::zigzag ? SequenceLayout::zigzag(offsets, over_ranks, padded)
                                        : SequenceLayout::contiguous(offsets, over_ranks, padded);
}

PlanOptions DsaJob::plan_options(int over_ranks, const PlanOptions& most) const {
  std::int64_t rows = 0;
  for (const std::int64_t length : lengths) rows += pad_to.value_or(length);
  const int ranks = emulated_ranks > 0 ? emulated_ranks : over_ranks;
  PlanOptions options = most;
  options.chunk_tokens = chunk_tokens > 0 ? chunk_tokens : part_of_shard(rows, ranks, 8, options.chunk_tokens);
  options.carry_rows = part_of_shard(rows, ranks, 4, options.carry_rows);
  options.block_rows = part_of_shard(rows, ranks, 8, options.block_rows);
  return options;
}

ModelShape choose_shape(const std::string& model, const ShapeArguments& a) {
  std::vector<std::string> names;
  for (const Model& m : models) names.emplace_back(m.name);
  ModelShape shape = models[parse_choice("--model", model, names)].shape;
  shape.topk = integer_or("--topk", a.topk, 1, most_topk, shape.topk);
  shape.heads = integer_or("--heads", a.heads, 1, most_heads, shape.heads);
  shape.index_heads = integer_or("--index-heads", a.index_heads, 1, most_heads, shape.index_heads);
  return shape;
}

void expect_device(DeviceKind device) {
  if (device == DeviceKind::host || Device::cuda_count() > 0) return;
  try {
    Device::cuda();
  } catch (const Error& e) {
    throw UsageError(fmt::format("--device: cuda cannot be used: {}", e.what()));
  }
}

Device device_of(const DsaJob& job, int rank) {
  if (job.device == DeviceKind::host) return Device::host();
  return Device::cuda(rank % std::max(1, Device::cuda_count()));
}

std::optional<LaunchedRank> launched_rank() {
  const Env env = Env::read();
  if (!env.store && !env.master_addr && env.rank && env.world_size && *env.world_size > 1) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("RANK is {} of WORLD_SIZE {}, but neither MASTER_ADDR nor TANDEM_STORE says where ranks meet",
                    *env.rank, *env.world_size));
  }
  if (!env.store && !(env.master_addr && env.rank)) return std::nullopt;
  if (!env.rank || !env.world_size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is set, but {} is not", env.store ? "TANDEM_STORE" : "MASTER_ADDR",
                            env.rank ? "WORLD_SIZE" : "RANK"));
  }
  if (*env.rank >= *env.world_size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("RANK is {}, but WORLD_SIZE is {}", *env.rank, *env.world_size));
  }
  return LaunchedRank{*env.rank, *env.world_size};
}

DsaJob make_job(const DsaArguments& a, const std::optional<LaunchedRank>& launched) {
  DsaJob job;
  choose_device(a, job);
  choose_ranks(a, launched, job);
  if (a.rendezvous_timeout) job.rendezvous_timeout = parse_seconds("--rendezvous-timeout", *a.rendezvous_timeout);
  if (a.timeout) job.timeout = parse_seconds("--timeout", *a.timeout);
  choose_model(a, job);
  if (a.layout) {
    job.partition =
        parse_choice("--layout", *a.layout, {"contiguous", "zigzag"}) == 0 ? Partition::contiguous : Partition::zigzag;
  }
  job.chunk_tokens = integer_or("--chunk-tokens", a.chunk_tokens, 1, most_rows, 0);
  job.dtype = choose_dtype("--dtype", a.dtype);
  if (a.index_dtype) {
    constexpr DType types[] = {DType::f32, DType::bf16, DType::f8e4m3};
    job.index_dtype = types[parse_choice("--index-dtype", *a.index_dtype, {"fp32", "bf16", "e4m3"})];
  }
  job.wire = choose_dtype("--wire", a.wire);
  if (a.seed) job.seed = parse_seed("--seed", *a.seed);
  job.deterministic = a.deterministic;
  if (a.loss_pass && parse_choice("--loss-pass", *a.loss_pass, {"forward", "backward"}) == 0)
    job.loss_pass = LossPass::forward;
  job.check = a.check;
  job.memory = a.memory;
  job.json = a.json;
  choose_documents(a, job);
  if (!launched && job.device == DeviceKind::host) expect_memory(job);
  if (a.trace) {
    job.trace = *a.trace;
    if (!launched || launched->rank == 0) test_writable("--trace", job.trace);
  }
  return job;
}

}  // namespace tandem::cli
