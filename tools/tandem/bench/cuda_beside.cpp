// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tandem/bench/cublas.hpp"
#include "tandem/bench/cuda_parts.hpp"
#include "tandem/bench/cuda_timer.hpp"
#include "tandem/error.hpp"

namespace tandem::cli {
namespace {

constexpr double most_repeats = 512;

class Beside final : public GemmSide {
 public:
  Beside(const BenchJob& job, const Device& device, CudaTimer& timer, BenchRanks& ranks)
      : job_(job),
        timer_(timer),
        ranks_(ranks),
        gemm_(device),
        compute_(device.create_stream({.name = "gemm"})),
        communication_(device.create_stream({.name = "bench-beside"})),
        begin_(timer.context()),
        gemm_begin_(timer.context()),
        gemm_end_(timer.context()),
        end_(timer.context()) {
    for (int i = 0; i < 2 * (job.gemms + 1); ++i) marks_.push_back(std::make_unique<TimedEvent>(timer.context()));
  }

  // The four by turns, so that a change of clocks meets all of them.
  BesideFigures measure(Contender& contender, double one_us) override {
    timer_.warm();
    BesideFigures figures;
    figures.repeats = repeats(gemm_alone(), one_us);
    const BenchTimer::Enqueue operations =
        timer_.capture([&contender](const Stream& stream) { contender.enqueue(stream); }, figures.repeats);
    std::vector<std::vector<double>> us(6);
    for (int i = -1; i < job_.iterations; ++i) {
      const double gemm = gemm_alone();
      const double alone = timer_.time(operations);
      const auto [gemm_beside, beside] = both(operations);
      const auto [total, stalls] = chunked(contender);
      if (i < 0) continue;
      const double all[] = {gemm, alone / figures.repeats, gemm_beside, beside / figures.repeats, total, stalls};
      for (std::size_t k = 0; k < us.size(); ++k) us[k].push_back(all[k]);
    }
    double* const medians[] = {&figures.gemm_alone_us, &figures.alone_us,   &figures.gemm_beside_us,
                               &figures.beside_us,     &figures.chunked_us, &figures.stalls_us};
    for (std::size_t k = 0; k < us.size(); ++k) *medians[k] = summarize(ranks_.largest(us[k])).median;
    return figures;
  }

 private:
  // So many operations take as long as the GEMMs; rank 0 says how many.
  int repeats(double gemm_us, double one_us) {
    const double mine = std::clamp(std::round(gemm_us / std::max(one_us, 1.0)), 1.0, most_repeats);
    return std::stoi(ranks_.from_first(std::to_string(static_cast<int>(mine))));
  }

  // GEMMs slow down with the heat of those before them, so each measurement of the sequence follows another one.
  void heat_up() {
    for (int i = 0; i < job_.gemms; ++i) gemm_.run(compute_);
    compute_.synchronize(Deadline::after(job_.timeout));
  }

  double gemm_alone() {
    heat_up();
    timer_.run(compute_, {&compute_}, [&](const auto&) {
      gemm_begin_.record(compute_);
      for (int i = 0; i < job_.gemms; ++i) gemm_.run(compute_);
      gemm_end_.record(compute_);
    });
    return gemm_end_.since(gemm_begin_);
  }

  // The operations first: who communicates beside compute starts that before.
  std::pair<double, double> both(const BenchTimer::Enqueue& operations) {
    heat_up();
    timer_.run(communication_, {&communication_, &compute_}, [&](const auto&) {
      begin_.record(communication_);
      begin_.hold(compute_);
      operations(communication_);
      end_.record(communication_);
      gemm_begin_.record(compute_);
      for (int i = 0; i < job_.gemms; ++i) gemm_.run(compute_);
      gemm_end_.record(compute_);
    });
    return {gemm_end_.since(gemm_begin_), end_.since(begin_)};
  }

  // Total and the waits of it. Twice the mark between two waits costs the stream something: it is part of both.
  std::pair<double, double> chunked(Contender& contender) {
    contender.divide(job_.gemms);
    contender.renew(timer_.stream(), ++salt_);
    heat_up();
    timer_.time([](const Stream&) {});  // until that is done on all ranks
    timer_.run(compute_, {&compute_, &communication_}, [&](const auto&) {
      gemm_begin_.record(compute_);
      gemm_begin_.hold(communication_);
      contender.begin_parts(communication_, job_.gemms);
      for (int i = 0; i < job_.gemms; ++i) {
        waiting(i, [&] { contender.before_part(compute_, i); });
        gemm_.run(compute_);
        contender.after_part(compute_, i);
      }
      waiting(job_.gemms, [&] { contender.end_parts(compute_); });
      gemm_end_.record(compute_);
    });
    double stalls = 0;
    for (std::size_t i = 0; i < marks_.size(); i += 2) stalls += marks_[i + 1]->since(*marks_[i]);
    if (job_.check) contender.check(timer_.stream());
    contender.divide(1);
    return {gemm_end_.since(gemm_begin_), stalls};
  }

  template <class Wait>
  void waiting(int number, const Wait& wait) {
    const auto i = 2 * static_cast<std::size_t>(number);
    marks_[i]->record(compute_);
    wait();
    marks_[i + 1]->record(compute_);
  }

  const BenchJob& job_;
  CudaTimer& timer_;
  BenchRanks& ranks_;
  const Gemm gemm_;
  const Stream compute_, communication_;
  const TimedEvent begin_, gemm_begin_, gemm_end_, end_;
  std::vector<std::unique_ptr<TimedEvent>> marks_;
  std::uint64_t salt_ = 0;
};

}  // namespace

std::unique_ptr<GemmSide> make_gemm_side(const BenchJob& job, const Device& device, BenchTimer& timer,
                                         BenchRanks& ranks) {
  auto* const cuda_timer = dynamic_cast<CudaTimer*>(&timer);
  if (cuda_timer == nullptr) throw Error(ErrorCode::internal, "GEMMs run beside operations on a GPU only");
  return std::make_unique<Beside>(job, device, *cuda_timer, ranks);
}

}  // namespace tandem::cli
