// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/timer.hpp"

#include "tandem/bench/cuda_parts.hpp"

namespace tandem::cli {
namespace {

class HostTimer final : public BenchTimer {
 public:
  HostTimer(Communicator& comm, std::chrono::milliseconds limit)
      : comm_(comm), limit_(limit), stream_(comm.device().create_stream({.name = "bench"})) {}

  std::string describe() const override { return "host clock, behind a barrier"; }
  const Stream& stream() const override { return stream_; }
  bool renews_each() const override { return false; }
  double time(const Enqueue& work) override { return time_in_a_row(work, 1); }
  double time_in_a_row(const Enqueue& work, int count) override {
    using Clock = std::chrono::steady_clock;
    stream_.synchronize(Deadline::after(limit_));
    // Every rank starts when all are done with the last one: what a rank waits for is the operation alone.
    comm_.barrier(Deadline::after(limit_));
    const auto before = Clock::now();
    for (int i = 0; i < count; ++i) work(stream_);
    stream_.synchronize(Deadline::after(limit_));
    return std::chrono::duration<double, std::micro>(Clock::now() - before).count() / count;
  }
  Enqueue capture(const Enqueue&, int) override {
    throw Error(ErrorCode::unsupported, "the host device has no graphs", comm_.rank());
  }

 private:
  Communicator& comm_;
  const std::chrono::milliseconds limit_;
  const Stream stream_;
};

}  // namespace

std::unique_ptr<BenchTimer> make_timer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit) {
  if (comm.device().kind() == DeviceKind::cuda) return make_cuda_timer(comm, ranks, limit);
  return std::make_unique<HostTimer>(comm, limit);
}

}  // namespace tandem::cli
