// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/env.hpp"
#include "base/log.hpp"
#include "bootstrap/rendezvous.hpp"
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

// How many values were wrong, on all ranks together.
std::uint64_t bench_rank(const BenchJob& job, const CommunicatorOptions& options,
                         const std::vector<std::string>& command_line) {
  Communicator comm = Communicator::create(options);
  std::uint64_t wrong = 0;
  {
    BenchRanks ranks(options.store, comm.rank(), comm.size(), job.timeout);
    std::optional<BenchReport> report;
    const auto print = [&](const std::string& text) {
      if (comm.rank() == 0) write_all(STDOUT_FILENO, text);
    };
    run_bench(
        job, comm, ranks,
        [&](const BenchFacts& facts) {
          report.emplace(
              job, BenchHeader{command_line, comm.device().describe(), comm.size() > 1 ? comm.route(1) : "", facts});
          print(report->begin());
        },
        [&](const std::vector<BenchRow>& rows) { print(report->add(rows)); });
    print(report->end());
    if (comm.rank() == 0 && !job.output_file.empty())
      write_atomically(job.output_file, report->as_json().dump(2) + "\n");
    wrong = report->wrong();
  }
  comm.finalize(Deadline::after(job.timeout));
  return wrong;
}

int run_rank(const BenchJob& job, detail::Membership membership, const std::vector<std::string>& command_line) {
  const int rank = membership.rank;
  try {
    const std::uint64_t wrong = bench_rank(job, communicator_options(job, std::move(membership)), command_line);
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

int run_threads(const BenchJob& job, const std::vector<std::string>& command_line) {
  const std::shared_ptr<HashStore> hub = HashStore::create(job.ranks);
  std::vector<int> codes(static_cast<std::size_t>(job.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      codes[static_cast<std::size_t>(rank)] = run_rank(job, {rank, job.ranks, hub->attach(rank)}, command_line);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace

int run_bench_command(const BenchArguments& arguments, const std::vector<std::string>& given) {
  std::vector<std::string> command_line = given;
  command_line.at(0) = "tandem";  // for the report: however it was found
  const std::optional<LaunchedRank> launched = launched_rank();
  const BenchJob job = make_bench_job(arguments, launched);
  if (job.transport == "loopback" || (!launched && job.ranks == 1)) return run_threads(job, command_line);
  if (!launched) {
    LaunchOptions options;
    options.ranks = job.ranks;
    options.command = given;
    options.command.at(0) = "/proc/self/exe";
    options.name = "tandem bench";
    return launch(options);
  }
  log::set_process_rank(launched->rank);
  return run_rank(job, detail::rendezvous_from_environment(Env::read()), command_line);
}

}  // namespace tandem::cli
