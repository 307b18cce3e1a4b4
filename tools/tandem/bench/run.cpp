// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/run.hpp"

#include <algorithm>
#include <random>

#include "tandem/bench/cuda_parts.hpp"
#include "tandem/bench/tandem_contenders.hpp"

namespace tandem::cli {
namespace {

constexpr int rows_of_calls = 5;  // of iterations in a row: each is as long as many iterations

/// One size: contenders by turns.
class Measurement {
 public:
  Measurement(const BenchJob& job, std::span<const std::unique_ptr<Contender>> contenders, BenchTimer& timer,
              BenchData& data, BenchRanks& ranks)
      : job_(job),
        contenders_(contenders),
        timer_(timer),
        data_(data),
        ranks_(ranks),
        limit_(job.timeout),
        // Other data in every run; the same salts on all ranks.
        salt_(std::stoull(ranks.from_first(std::to_string(std::random_device{}())))),
        us_(contenders.size()),
        in_a_row_(contenders.size()),
        wrong_(contenders.size()),
        late_(contenders.size()) {}

  std::vector<BenchRow> run() {
    for (std::size_t c = 0; c < contenders_.size(); ++c) prepare(c);
    timer_.warm();
    for (int i = -job_.warmup; i < samples(); ++i) {
      for (std::size_t c = 0; c < contenders_.size(); ++c) iterate(c, i >= 0);
    }
    if (timer_.renews_each() && job_.graph_launches == 0) {
      for (int i = 0; i < rows_of_calls; ++i) {
        for (std::size_t c = 0; c < contenders_.size(); ++c) {
          in_a_row_[c].push_back(timer_.time_in_a_row(calls_[c], job_.iterations));
          late_[c] += static_cast<std::uint64_t>(timer_.take_late());
        }
      }
    }
    if (job_.check && !timer_.renews_each()) {
      for (std::size_t c = 0; c < contenders_.size(); ++c) check_once(c);
    }
    return rows();
  }

 private:
  int samples() const { return job_.graph_launches > 0 ? job_.graph_launches : job_.iterations; }
  Deadline deadline() const { return Deadline::after(limit_); }

  // The first calls are not timed, and start at once: connections are made in them, memory is found and that of another
  // size is given back, which would wait for a gate. Two of them, for gathers and reductions alternate between two
  // slots. Graphs are captured after that.
  void prepare(std::size_t c) {
    Contender& contender = *contenders_[c];
    for (int i = 0; i < Prepared::slots; ++i) {
      contender.renew(timer_.stream(), ++salt_);
      contender.enqueue(timer_.stream());
      timer_.stream().synchronize(deadline());
    }
    BenchTimer::Enqueue call = [&contender](const Stream& stream) { contender.enqueue(stream); };
    calls_.push_back(job_.graph_launches > 0 ? timer_.capture(call, job_.iterations) : std::move(call));
  }

  void iterate(std::size_t c, bool counts) {
    if (timer_.renews_each()) contenders_[c]->renew(timer_.stream(), ++salt_);
    const double us = timer_.time(calls_[c]) / (job_.graph_launches > 0 ? job_.iterations : 1);
    late_[c] += static_cast<std::uint64_t>(timer_.take_late());
    if (counts) us_[c].push_back(us);
    if (job_.check && timer_.renews_each()) count(c);
  }

  void check_once(std::size_t c) {
    contenders_[c]->renew(timer_.stream(), ++salt_);
    timer_.time(calls_[c]);
    count(c);
  }

  void count(std::size_t c) {
    contenders_[c]->check(timer_.stream());
    wrong_[c] += data_.take_wrong(timer_.stream(), deadline());
  }

  std::vector<BenchRow> rows() {
    std::vector<BenchRow> out;
    for (std::size_t c = 0; c < contenders_.size(); ++c) {
      BenchRow row;
      row.contender = contenders_[c]->name();
      row.volume = contenders_[c]->volume();
      row.us = summarize(ranks_.largest(us_[c]));
      if (!in_a_row_[c].empty()) row.back_to_back_us = summarize(ranks_.largest(in_a_row_[c])).median;
      row.wrong = ranks_.sum(wrong_[c]);
      row.checked = job_.check;
      row.late = ranks_.sum(late_[c]);
      out.push_back(std::move(row));
    }
    return out;
  }

  const BenchJob& job_;
  const std::span<const std::unique_ptr<Contender>> contenders_;
  BenchTimer& timer_;
  BenchData& data_;
  BenchRanks& ranks_;
  const std::chrono::milliseconds limit_;
  std::uint64_t salt_;
  std::vector<BenchTimer::Enqueue> calls_;
  std::vector<std::vector<double>> us_, in_a_row_;
  std::vector<std::uint64_t> wrong_, late_;
};

}  // namespace

std::vector<BenchRow> measure_contenders(const BenchJob& job, std::span<const std::unique_ptr<Contender>> contenders,
                                         BenchTimer& timer, BenchData& data, BenchRanks& ranks) {
  return Measurement(job, contenders, timer, data, ranks).run();
}

void run_bench(const BenchJob& job, Communicator& comm, BenchRanks& ranks,
               const std::function<void(const BenchFacts&)>& begin,
               const std::function<void(const std::vector<BenchRow>&)>& each) {
  const std::unique_ptr<BenchData> data = make_data(comm.device());
  const std::unique_ptr<NcclSide> nccl = job.versus_nccl ? make_nccl_side(job, comm.device(), ranks) : nullptr;
  const std::unique_ptr<BenchTimer> timer = make_timer(comm, ranks, job.timeout);
  const std::unique_ptr<GemmSide> gemm = job.gemms > 0 ? make_gemm_side(job, comm.device(), *timer, ranks) : nullptr;
  begin({timer->describe(), nccl ? nccl->version() : ""});
  for (const std::uint64_t size : job.sizes) {
    std::vector<std::unique_ptr<Contender>> contenders;
    contenders.push_back(make_tandem_contender(job, comm, *data, size));
    if (nccl) {
      for (auto& contender : nccl->contenders(size, *data)) contenders.push_back(std::move(contender));
    }
    std::vector<BenchRow> rows = measure_contenders(job, contenders, *timer, *data, ranks);
    for (std::size_t c = 0; gemm && c < contenders.size(); ++c) {
      rows[c].beside = gemm->measure(*contenders[c], rows[c].us.median);
      rows[c].late += ranks.sum(static_cast<std::uint64_t>(timer->take_late()));
      if (job.check) rows[c].wrong += ranks.sum(data->take_wrong(timer->stream(), Deadline::after(job.timeout)));
    }
    each(rows);
  }
}

}  // namespace tandem::cli
