// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/env.hpp"
#include "base/log.hpp"
#include "commands.hpp"
#include "files.hpp"
#include "launcher.hpp"
#include "process.hpp"
#include "rank_run.hpp"
#include "report.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

/// Long enough for what streams are in the middle of, short enough for the promise to end a second after a deadline.
constexpr std::chrono::milliseconds wind_down{500};

void say_failure(int rank, const std::exception& error) {
  write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {}\n", rank, error.what()));
}

// True if it went well. A failure is reported here, once.
bool run_rank(RankRun& run, int rank, CommunicatorOptions options, bool from_environment) {
  try {
    options.rank = rank;
    run.run(std::move(options), from_environment);
    return true;
  } catch (const std::exception& error) {
    say_failure(rank, error);
    return false;
  }
}

// Of `count` ranks from `first` on.
std::vector<std::unique_ptr<RankRun>> make_runs(const DsaJob& job, int first, int count, int threads) {
  std::vector<std::unique_ptr<RankRun>> runs;
  for (int i = 0; i < count; ++i) runs.push_back(std::make_unique<RankRun>(job, job.ranks, first + i, threads));
  return runs;
}

// All ranks as threads of this process.
bool run_threads(const DsaJob& job, std::vector<std::unique_ptr<RankRun>>& runs) {
  const std::shared_ptr<HashStore> hub = HashStore::create(job.ranks);
  std::vector<char> good(runs.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      CommunicatorOptions options;
      options.size = job.ranks;
      options.store = hub->attach(rank);
      options.transport = job.ranks > 1 ? "loopback" : "";
      good[r] = run_rank(*runs[r], rank, std::move(options), false) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::all_of(good.begin(), good.end(), [](char g) { return g != 0; });
}

int threads_per_local_rank(int ranks) {
  if (const std::optional<int> chosen = Env::read().threads) return *chosen;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

int report_run(const DsaJob& job, const RankRun& run) {
  Report report(job);
  report.ranks = run.summaries();
  if (job.check) report.check = check(job, run.results());
  if (!job.trace.empty()) write_atomically(job.trace, perfetto_json(run.spans()));
  const std::string text = job.json ? report.to_json().dump() + "\n" : report.to_text();
  print_result(text);
  if (report.ok()) return exit_ok;
  for (const std::string& fault : report.check->faults()) {
    write_all(STDERR_FILENO, fmt::format("tandem: check failed: {}\n", fault));
  }
  return exit_failure;
}

// A failed run may leave tasks on its streams that have long to go and still use its memory: then the process ends
// under them, without the destructors.
void end_failed(const std::vector<std::unique_ptr<RankRun>>& runs) {
  const Deadline deadline = Deadline::after(wind_down);
  const bool idle = std::all_of(runs.begin(), runs.end(), [&](const auto& run) { return run->idle(deadline); });
  if (!idle) std::_Exit(exit_failure);
}

}  // namespace

int run_dsa(const DsaArguments& arguments, const std::vector<std::string>& command_line) {
  const std::optional<LaunchedRank> launched = launched_rank();
  const DsaJob job = make_job(arguments, launched);
  const bool threads = job.transport == "loopback" || (!launched && job.ranks == 1);
  if (!threads && !launched) {
    LaunchOptions launch_options;
    launch_options.ranks = job.ranks;
    launch_options.command = command_line;
    launch_options.command.at(0) = "/proc/self/exe";
    launch_options.name = "tandem dsa";
    return launch(launch_options);
  }
  const int rank = threads ? 0 : launched->rank;
  auto runs = make_runs(job, rank, threads ? job.ranks : 1, threads ? threads_per_local_rank(job.ranks) : 0);
  bool good = false;
  if (threads) {
    good = run_threads(job, runs);
  } else {
    log::set_process_rank(rank);
    CommunicatorOptions options;
    options.transport = job.transport;
    good = run_rank(*runs[0], rank, std::move(options), true);
  }
  if (!good) {
    end_failed(runs);
    return exit_failure;
  }
  if (rank != 0) return exit_ok;
  try {
    return report_run(job, *runs[0]);
  } catch (const std::exception& error) {
    say_failure(rank, error);
    return exit_failure;
  }
}

}  // namespace tandem::cli
