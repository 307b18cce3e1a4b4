// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "gpu/p2p/comm_scenarios.hpp"
#include "gpu/p2p/dsa_scenarios.hpp"
#include "gpu/p2p/kernels.hpp"
#include "gpu/p2p/mutants.hpp"
#include "gpu/p2p/worker.hpp"

namespace tandem::testing_p2p {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void check(cudaError_t result, const char* call) { detail::cuda::check(result, call, 0); }

/// A protocol with a step left out may get stuck; its only question is whether it does or is wrong. Then the other rank
/// would not come, and nothing is tidied up: that would wait for what is stuck.
[[noreturn]] void end_without_a_step(const Worker& worker) {
  try {
    if (!worker.drain(seconds(2))) std::_Exit(3);
    worker.expect_all_right();
  } catch (const std::exception&) {
    std::_Exit(2);
  }
  std::_Exit(0);
}

/// Every operation that a rank issues, in one of the orders in which callers come: order 0 consumes each at once, order
/// 1 issues the next one before it consumes the last, order 2 has long work of the stream in front of every operation.
void operations(const Arguments& a) {
  Worker worker(a, static_cast<int>(a.number("chunks", 4)), static_cast<std::size_t>(a.number("words", 50000)));
  const long count = a.number("operations", 50), order = a.number("order", 0), late = a.number("late", -1);
  const long jitter_us = a.number("jitter_us", 0);
  std::mt19937_64 rng(static_cast<std::uint64_t>(a.number("seed", 0) * 100 + a.rank));
  const auto delay = [&] {
    if (jitter_us > 0) spin(worker.stream(), rng() % static_cast<std::uint64_t>(jitter_us * 1000));
  };
  if (a.number("without", 0) != 0) leave_out(static_cast<Step>(a.number("without", 0)), worker.stream());
  const auto consume = [&] {
    delay();
    worker.consume();
  };
  for (long n = 0; n < count; ++n) {
    delay();
    if (late == a.rank) std::this_thread::sleep_for(milliseconds(a.number("late_ms", 50)));
    if (order == 2) spin(worker.stream(), 500'000);
    worker.issue();
    if (order != 1 || n > 0) consume();
  }
  if (order == 1) consume();
  worker.wait_sent();
  if (a.number("without", 0) != 0) end_without_a_step(worker);
  if (!worker.drain(seconds(10))) throw std::runtime_error("the operations did not finish in time");
  worker.expect_all_right();
  worker.meet();
}

/// One graph of two operations, one on each lane, replayed: sources change from replay to replay, destinations are
/// poisoned by whoever checked them.
void replay(const Arguments& a) {
  Worker worker(a, static_cast<int>(a.number("chunks", 4)), static_cast<std::size_t>(a.number("words", 50000)));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(worker.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  worker.issue();
  worker.issue();
  worker.consume();
  worker.consume();
  worker.wait_sent();
  check(cudaStreamEndCapture(worker.stream(), &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (long n = 0; n < a.number("replays", 100); ++n)
    check(cudaGraphLaunch(executable, worker.stream()), "cudaGraphLaunch");
  if (!worker.drain(seconds(30))) throw std::runtime_error("the replays did not finish within 30 s");
  worker.expect_all_right();
  // And eager ones behind them.
  worker.issue();
  worker.consume();
  worker.wait_sent();
  if (!worker.drain(seconds(10))) throw std::runtime_error("an operation behind the replays did not finish");
  worker.expect_all_right();
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  worker.meet();
}

/// Rank 1 dies in the middle. The others get stuck, abort, and can use their GPU again.
void death(const Arguments& a) {
  Worker worker(a, 4, 50000);
  for (int n = 0; n < 5; ++n) {
    worker.issue();
    worker.consume();
  }
  if (a.rank == 1) {
    worker.issue();  // receives posted, sends under way or not
    ::raise(SIGKILL);
  }
  for (int n = 0; n < 3; ++n) {
    worker.issue();
    worker.consume();
  }
  if (worker.drain(milliseconds(500))) throw std::runtime_error("nobody missed the dead rank");
  const auto before = std::chrono::steady_clock::now();
  worker.abort();
  if (!worker.drain(seconds(1))) throw std::runtime_error("abort did not release the stream within a second");
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - before;
  spin(worker.stream(), 1000);
  if (!worker.drain(seconds(1))) throw std::runtime_error("the GPU is of no use after the abort");
  fmt::print("released after {:.2f} ms\n", took.count());
}

/// As operations(), but rank 1 does half of them and no more. Rank 0 gets stuck in the other half, in whichever order
/// it came, and its abort releases every wait.
void aborted(const Arguments& a) {
  Worker worker(a, 4, 50000);
  const long count = 6, order = a.number("order", 0);
  const long mine = a.rank == 1 ? count / 2 : count;
  if (a.number("late", -1) == a.rank) std::this_thread::sleep_for(milliseconds(50));
  for (long n = 0; n < mine; ++n) {
    if (order == 2) spin(worker.stream(), 500'000);
    worker.issue();
    if (order != 1 || n > 0) worker.consume();
  }
  if (order == 1) worker.consume();
  if (a.rank == 0) {
    worker.wait_sent();
    if (worker.drain(milliseconds(300))) throw std::runtime_error("nobody missed what rank 1 did not send");
    worker.abort();
    if (!worker.drain(seconds(1))) throw std::runtime_error("abort did not release the stream within a second");
    spin(worker.stream(), 1000);
    if (!worker.drain(seconds(1))) throw std::runtime_error("the GPU is of no use after the abort");
  }
  worker.meet();
}

/// A stream that is stuck with nothing but this rank's own abort to help it.
void stuck(const Arguments& a) {
  Worker worker(a, 4, 50000);
  if (a.rank == 0) {
    for (int n = 0; n < 4; ++n) worker.issue();
    for (int n = 0; n < 4; ++n) worker.consume();
    if (worker.drain(milliseconds(200))) throw std::runtime_error("there was nobody to receive from");
    worker.abort();
    if (!worker.drain(seconds(1))) throw std::runtime_error("abort did not release the stream within a second");
  }
  worker.meet();
}

}  // namespace

int run_scenario(const Arguments& a) {
  try {
    static const std::map<std::string, void (*)(const Arguments&)> scenarios{{"operations", operations},
                                                                             {"replay", replay},
                                                                             {"death", death},
                                                                             {"stuck", stuck},
                                                                             {"aborted", aborted},
                                                                             {"ring", ring},
                                                                             {"collectives", collectives},
                                                                             {"captured", captured},
                                                                             {"comm_death", comm_death},
                                                                             {"dsa", dsa},
                                                                             {"dsa_captured", dsa_captured}};
    scenarios.at(a.scenario)(a);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", a.rank, e.what());
    return 1;
  }
}

}  // namespace tandem::testing_p2p
