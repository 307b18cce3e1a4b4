// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/compute_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "tandem/bench/data.hpp"
#include "tandem/bench/dsa_step.hpp"
#include "tandem/bench/kernel_work.hpp"
#include "tandem/bench/timer.hpp"
#include "tandem/bench/turns.hpp"
#include "tandem/kernel_sets.hpp"
#include "tandem/process.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

/// What a run works with.
struct Session {
  const ComputeJob& job;
  Communicator& comm;
  BenchRanks& ranks;
  const std::shared_ptr<KernelSet> kernels;
  const RowFiller filler;
  const std::unique_ptr<BenchData> data;
  const std::unique_ptr<BenchTimer> timer;
};

/// Runs `work`. If it fails while streams still use its memory, and go on doing so, the process ends: what `work` uses
/// is the caller's and would go.
void settle(const Communicator& comm, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    constexpr std::chrono::seconds patience{5};
    try {
      comm.device().synchronize(Deadline::after(patience));
    } catch (const Error& still) {
      if (still.code() == ErrorCode::timeout) {
        write_all(STDERR_FILENO, fmt::format("tandem: rank {}: {}\n", comm.rank(), error.what()));
        std::_Exit(exit_failure);
      }
    }
    throw;
  }
}

ComputeRow measure_kernel(const Session& s, KernelWork& work, const QueryRows& rows) {
  const Turn turn{[&work](const Stream& stream) { work.enqueue(stream); }, {}};
  const TurnTimes times = time_by_turns(s.job.common, {&turn, 1}, *s.timer, s.ranks).front();
  ComputeRow row;
  row.keys = rows.keys;
  row.queries = rows.rows;
  row.pairs = work.pairs();
  row.cost = work.cost();
  if (const auto rates = rates_of(s.job.common.device)) row.floor_us = floor_us(row.cost, *rates);
  row.added_bytes = work.added_bytes();
  row.us = summarize(times.us);
  row.late = times.late;
  row.scratch = s.kernels->scratch_bytes();
  if (s.job.common.check) {
    work.poison(s.timer->stream(), *s.data);
    run_turn(s.job.common, turn, s.timer->stream());
    row.checked = true;
    row.verdict = work.check();
  }
  s.kernels->throw_if_failed();
  return row;
}

void run_kernels(const Session& s, const std::function<void(const ComputeRow&)>& each) {
  for (const std::int64_t keys : s.job.seq_lens) {
    for (const QueryChoice& choice : s.job.queries) {
      const QueryRows rows = make_query_rows(s.filler, choice, keys);
      for (const Pattern pattern : s.job.patterns) {
        const auto work = make_kernel_work(s.job, rows, pattern, s.kernels, s.filler);
        settle(s.comm, [&] {
          ComputeRow row = measure_kernel(s, *work, rows);
          row.share = choice.share;
          row.pattern = pattern;
          each(row);
        });
      }
    }
  }
}

void run_steps(const Session& s, const std::function<void(const ComputeRow&)>& each) {
  for (const std::int64_t seq_len : s.job.seq_lens) {
    DsaStep step(s.job, s.comm, s.kernels, s.filler, seq_len);
    settle(s.comm, [&] {
      for (const ComputeRow& row : step.measure(*s.timer, s.ranks, *s.data)) each(row);
    });
  }
}

}  // namespace

void run_compute(const ComputeJob& job, Communicator& comm, BenchRanks& ranks, int threads,
                 const std::function<void(const ComputeFacts&)>& begin,
                 const std::function<void(const ComputeRow&)>& each) {
  const Session session{job,
                        comm,
                        ranks,
                        make_kernels(job.kernels, comm.device(), threads, job.deterministic),
                        RowFiller(comm.device()),
                        make_data(comm.device()),
                        make_timer(comm, ranks, job.common.timeout)};
  begin({session.kernels->name(), session.timer->describe()});
  if (is_step(job.operation)) {
    run_steps(session, each);
  } else {
    run_kernels(session, each);
  }
}

}  // namespace tandem::cli
