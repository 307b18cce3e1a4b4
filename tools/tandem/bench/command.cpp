// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "base/env.hpp"
#include "base/log.hpp"
#include "bootstrap/rendezvous.hpp"
#include "tandem/bench/compute_report.hpp"
#include "tandem/bench/compute_run.hpp"
#include "tandem/bench/report.hpp"
#include "tandem/bench/run.hpp"
#include "tandem/commands.hpp"
#include "tandem/files.hpp"
#include "tandem/launcher.hpp"
#include "tandem/process.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

CommunicatorOptions communicator_options(const BenchJob& job, detail::Membership membership) {
  CommunicatorOptions options;
  options.rank = membership.rank;
  options.size = membership.size;
  options.store = std::move(membership.store);
  const int gpus = job.device == DeviceKind::cuda ? Device::cuda_count() : 0;
  options.device = job.device == DeviceKind::cuda ? Device::cuda(gpus > 0 ? options.rank % gpus : 0) : Device::host();
  options.operation_timeout = job.timeout;
  if (job.transport_chosen) options.transport = job.transport;
  options.transport_options = job.transport_options;
  if (job.slow_link > 1) options.transport_options["repeat"] = std::to_string(job.slow_link);
  // No pair of ranks may take one that does not know the options.
  if (!options.transport_options.empty()) options.transport = job.transport;
  return options;
}

/// What one rank does: how many values or rows were wrong, on all ranks together.
using RankMain = std::function<std::uint64_t(Communicator& comm, BenchRanks& ranks)>;

std::string route_of(const Communicator& comm) { return comm.size() > 1 ? comm.route(1) : ""; }

void print(const Communicator& comm, const std::string& text) {
  if (comm.rank() == 0) print_result(text);
}

template <class Report>
std::uint64_t finish(const BenchJob& job, const Communicator& comm, const Report& report) {
  print(comm, report.end());
  if (comm.rank() == 0 && !job.output_file.empty()) write_atomically(job.output_file, report.as_json().dump(2) + "\n");
  return report.wrong();
}

std::uint64_t time_communication(const BenchJob& job, const std::vector<std::string>& command_line, Communicator& comm,
                                 BenchRanks& ranks) {
  std::optional<BenchReport> report;
  run_bench(
      job, comm, ranks,
      [&](const BenchFacts& facts) {
        report.emplace(job, BenchHeader{command_line, comm.device().describe(), route_of(comm), facts});
        print(comm, report->begin());
      },
      [&](const std::vector<BenchRow>& rows) { print(comm, report->add(rows)); });
  return finish(job, comm, *report);
}

std::uint64_t time_compute(const ComputeJob& job, const std::vector<std::string>& command_line, int threads,
                           Communicator& comm, BenchRanks& ranks) {
  std::optional<ComputeReport> report;
  run_compute(
      job, comm, ranks, threads,
      [&](const ComputeFacts& facts) {
        report.emplace(
            job, ComputeHeader{command_line, comm.device().describe(), route_of(comm), facts.kernels, facts.timing});
        print(comm, report->begin());
      },
      [&](const ComputeRow& row) { print(comm, report->add(row)); });
  return finish(job.common, comm, *report);
}

std::uint64_t join(const BenchJob& job, const CommunicatorOptions& options, const RankMain& main) {
  Communicator comm = Communicator::create(options);
  std::uint64_t wrong = 0;
  {
    BenchRanks ranks(options.store, comm.rank(), comm.size(), job.timeout);
    wrong = main(comm, ranks);
  }
  comm.finalize(Deadline::after(job.timeout));
  return wrong;
}

int run_rank(const BenchJob& job, detail::Membership membership, const RankMain& main) {
  const int rank = membership.rank;
  try {
    const std::uint64_t wrong = join(job, communicator_options(job, std::move(membership)), main);
    if (wrong == 0) return exit_ok;
    if (rank == 0) write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {} values were wrong\n", rank, wrong));
    return exit_failure;
  } catch (const UsageError& error) {
    write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {}\n", rank, error.what()));
    return exit_usage;
  } catch (const std::exception& error) {
    write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {}\n", rank, error.what()));
    return exit_failure;
  }
}

int run_threads(const BenchJob& job, const RankMain& main) {
  const std::shared_ptr<HashStore> hub = HashStore::create(job.ranks);
  std::vector<int> codes(static_cast<std::size_t>(job.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      codes[static_cast<std::size_t>(rank)] = run_rank(job, {rank, job.ranks, hub->attach(rank)}, main);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

/// Where ranks come from: threads, processes that this one starts, or a launcher.
int run_ranks(const BenchJob& job, const std::optional<LaunchedRank>& launched, const std::vector<std::string>& given,
              const RankMain& main) {
  if (job.transport == "loopback" || (!launched && job.ranks == 1)) return run_threads(job, main);
  if (!launched) {
    LaunchOptions options;
    options.ranks = job.ranks;
    options.command = given;
    options.command.at(0) = "/proc/self/exe";
    options.name = "tandem bench";
    return launch(options);
  }
  log::set_process_rank(launched->rank);
  return run_rank(job, detail::rendezvous_from_environment(Env::read()), main);
}

// Kernels of ranks that are threads share the cores; those of processes find that out by themselves.
int threads_of_kernels(const BenchJob& job) {
  if (job.transport != "loopback" || job.ranks == 1) return 0;
  if (const std::optional<int> chosen = Env::read().threads) return *chosen;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / job.ranks);
}

}  // namespace

int run_bench_command(const BenchArguments& arguments, const std::vector<std::string>& given) {
  std::vector<std::string> command_line = given;
  command_line.at(0) = "tandem";  // for the report: however it was found
  const std::optional<LaunchedRank> launched = launched_rank();
  if (const std::optional<ComputeOperation> operation = compute_operation(arguments.operation)) {
    const ComputeJob job = make_compute_job(*operation, arguments, launched);
    const int threads = threads_of_kernels(job.common);
    return run_ranks(job.common, launched, given, [&](Communicator& comm, BenchRanks& ranks) {
      return time_compute(job, command_line, threads, comm, ranks);
    });
  }
  const BenchJob job = make_bench_job(arguments, launched);
  return run_ranks(job, launched, given, [&](Communicator& comm, BenchRanks& ranks) {
    return time_communication(job, command_line, comm, ranks);
  });
}

}  // namespace tandem::cli
