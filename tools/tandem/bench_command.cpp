// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.hpp"
#include "bench_run.hpp"
#include "commands.hpp"
#include "launcher.hpp"
#include "process.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

using json = nlohmann::ordered_json;

void print(const std::string& text) { write_all(STDOUT_FILENO, text); }

/// What rank 0 prints; the columns are those of nccl-tests as far as they apply.
class Output {
 public:
  explicit Output(const BenchJob& job) : job_(job) {}

  void begin(const Communicator& comm) {
    if (job_.json) return;
    if (job_.csv) return print("operation,ranks,size,per_rank,received,median_us,p95_us,cv,algbw,busbw,wrong\n");
    const std::string over = comm.size() == 1 ? "" : " over " + comm.route(1);
    print(fmt::format("# tandem bench {}: {} rank{}{}, on {}\n# {} iterations after {} warm-ups; times of rank 0\n#\n",
                      to_string(job_.operation), comm.size(), comm.size() == 1 ? "" : "s", over,
                      comm.device().describe(), job_.iterations, job_.warmup));
    print(fmt::format("#{:>12} {:>12} {:>10} {:>10} {:>7} {:>8} {:>8} {:>8}\n", "size", "per rank", "time", "p95", "CV",
                      "algbw", "busbw", "#wrong"));
    print(fmt::format("#{:>12} {:>12} {:>10} {:>10} {:>7} {:>8} {:>8}\n", "(B)", "(B)", "(us)", "(us)", "(%)", "(GB/s)",
                      "(GB/s)"));
  }

  void add(const BenchRow& row) {
    sum_ += row.bus_rate();
    ++rows_;
    wrong_ += row.wrong;
    if (job_.json) {
      list_.push_back({{"size", row.size},
                       {"per_rank", row.per_rank},
                       {"received", row.received},
                       {"median_us", row.median_us},
                       {"p95_us", row.p95_us},
                       {"cv", row.cv},
                       {"algbw", row.algorithm_rate()},
                       {"busbw", row.bus_rate()},
                       {"wrong", row.checked ? json(row.wrong) : json(nullptr)}});
    } else if (job_.csv) {
      print(fmt::format("{},{},{},{},{},{:.3f},{:.3f},{:.5f},{:.4f},{:.4f},{}\n", to_string(job_.operation), job_.ranks,
                        row.size, row.per_rank, row.received, row.median_us, row.p95_us, row.cv, row.algorithm_rate(),
                        row.bus_rate(), row.checked ? std::to_string(row.wrong) : "N/A"));
    } else {
      print(fmt::format(" {:>12} {:>12} {:>10.2f} {:>10.2f} {:>7.1f} {:>8.2f} {:>8.2f} {:>8}\n", row.size, row.per_rank,
                        row.median_us, row.p95_us, 100 * row.cv, row.algorithm_rate(), row.bus_rate(),
                        row.checked ? std::to_string(row.wrong) : "N/A"));
    }
  }

  void end(const Communicator& comm) const {
    if (job_.csv) return;
    if (job_.json) {
      const json out = {{"operation", to_string(job_.operation)},
                        {"ranks", job_.ranks},
                        {"transport", job_.transport},
                        {"device", comm.device().describe()},
                        {"iterations", job_.iterations},
                        {"results", list_},
                        {"ok", wrong_ == 0}};
      return print(out.dump() + "\n");
    }
    print(fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:.4f}\n", wrong_,
                      wrong_ == 0 ? "OK" : "FAILED", rows_ > 0 ? sum_ / rows_ : 0.0));
  }

 private:
  const BenchJob& job_;
  json list_ = json::array();
  double sum_ = 0;
  int rows_ = 0;
  std::uint64_t wrong_ = 0;
};

// True if all went well and everything was right.
bool run_rank(const BenchJob& job, CommunicatorOptions options, bool from_environment, int rank) {
  try {
    const int gpus = job.device == DeviceKind::cuda ? Device::cuda_count() : 0;
    options.device = job.device == DeviceKind::cuda ? Device::cuda(gpus > 0 ? rank % gpus : 0) : Device::host();
    options.operation_timeout = job.timeout;
    Communicator comm =
        from_environment ? Communicator::from_environment(std::move(options)) : Communicator::create(options);
    Output output(job);
    if (rank == 0) output.begin(comm);
    std::uint64_t wrong = 0;
    run_bench(job, comm, [&](const BenchRow& row) {
      wrong += row.wrong;
      if (rank == 0) output.add(row);
    });
    if (rank == 0) output.end(comm);
    comm.finalize(Deadline::after(job.timeout));
    if (wrong > 0) write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {} values were wrong\n", rank, wrong));
    return wrong == 0;
  } catch (const std::exception& error) {
    write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {}\n", rank, error.what()));
    return false;
  }
}

bool run_threads(const BenchJob& job) {
  const std::shared_ptr<HashStore> hub = HashStore::create(job.ranks);
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = job.ranks;
      options.store = hub->attach(rank);
      if (job.transport_chosen) options.transport = job.transport;
      if (!run_rank(job, std::move(options), false, rank)) good = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good;
}

}  // namespace

int run_bench_command(const BenchArguments& arguments, const std::vector<std::string>& command_line) {
  const std::optional<LaunchedRank> launched = launched_rank();
  const BenchJob job = make_bench_job(arguments, launched);
  if (job.transport == "loopback" || (!launched && job.ranks == 1)) return run_threads(job) ? exit_ok : exit_failure;
  if (!launched) {
    LaunchOptions options;
    options.ranks = job.ranks;
    options.command = command_line;
    options.command.at(0) = "/proc/self/exe";
    options.name = "tandem bench";
    return launch(options);
  }
  log::set_process_rank(launched->rank);
  CommunicatorOptions options;
  if (job.transport_chosen) options.transport = job.transport;
  return run_rank(job, std::move(options), true, launched->rank) ? exit_ok : exit_failure;
}

}  // namespace tandem::cli
