// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <string>

#include "device/cuda/context.hpp"
#include "tandem/bench/cuda_gate.hpp"
#include "tandem/bench/timer.hpp"

namespace tandem::cli {

/// A cudaEvent_t that notes its time.
class TimedEvent {
 public:
  explicit TimedEvent(const detail::cuda::Context& context);
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(const Stream& stream) const;
  /// Work that `stream` is given from here on comes after the last record.
  void hold(const Stream& stream) const;
  /// Microseconds from `begin` on. Both have passed.
  double since(const TimedEvent& begin) const;

 private:
  const detail::cuda::Context context_;
  cudaEvent_t event_ = nullptr;
};

/// Times by events on the stream, behind a gate.
class CudaTimer final : public BenchTimer {
 public:
  CudaTimer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit);

  std::string describe() const override;
  const Stream& stream() const override { return stream_; }
  bool renews_each() const override { return true; }
  void warm() override;
  double time(const Enqueue& work) override;
  double time_in_a_row(const Enqueue& work, int count) override;
  Enqueue capture(const Enqueue& work, int count) override;
  int take_late() override { return gate_.take_late(); }

  /// Cold caches and a closed gate on `stream`; then `enqueue` is called, and the gate opens when it returns, or when
  /// it calls what it is given. Blocks until `streams` are done.
  void run(const Stream& gated, std::initializer_list<const Stream*> streams,
           const std::function<void(const std::function<void()>&)>& enqueue);
  const detail::cuda::Context& context() const noexcept { return context_; }

 private:
  void flush_caches(const Stream& stream) const;
  void open();

  Communicator& comm_;
  const std::chrono::milliseconds limit_;
  const Stream stream_;
  const detail::cuda::Context context_;
  Gate gate_;
  const TimedEvent start_, stop_;
  Buffer more_than_the_cache_;
};

}  // namespace tandem::cli
