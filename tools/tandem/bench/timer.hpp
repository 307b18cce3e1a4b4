// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tandem/bench/ranks.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

/// Measures what is enqueued on a stream, all ranks starting together. Calls are collective.
class BenchTimer {
 public:
  using Enqueue = std::function<void(const Stream&)>;

  virtual ~BenchTimer() = default;
  /// One line on how starts are aligned and times are taken.
  virtual std::string describe() const = 0;
  virtual const Stream& stream() const = 0;
  /// Inputs and results can be renewed and checked at every iteration at no great cost.
  virtual bool renews_each() const = 0;

  /// Brings clocks up before a row of measurements.
  virtual void warm() {}
  /// Microseconds that one call of `work` takes on this rank. Caches hold nothing of before; blocks until it is done.
  virtual double time(const Enqueue& work) = 0;
  /// Microseconds of one of `count` calls in a row.
  virtual double time_in_a_row(const Enqueue& work, int count) = 0;
  /// `count` calls of `work` as one graph: what is returned launches it. Throws unsupported on the host.
  virtual Enqueue capture(const Enqueue& work, int count) = 0;
  /// In how many measurements since the last call this rank's GPU had to wait for the host.
  virtual int take_late() { return 0; }
};

/// `limit` is for each call.
std::unique_ptr<BenchTimer> make_timer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit);

}  // namespace tandem::cli
