// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "device/cuda/context.hpp"
#include "tandem/bench/ranks.hpp"
#include "tandem/device.hpp"

namespace tandem::cli {

/// Holds a stream until the host has enqueued what is to be measured, and lets those of all ranks go together, so that
/// a GPU waits neither for its host nor, at the start, for another GPU. Streams wait for words in host memory that the
/// ranks share, and use no multiprocessor for it.
class Gate {
 public:
  /// Collective.
  Gate(const Device& device, BenchRanks& ranks);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// False if the ranks have no memory in common: open() then frees this rank's stream alone.
  bool shared() const noexcept;
  /// What `stream` is given from here on waits for open(), then until all ranks' streams have come to this point.
  void close(const Stream& stream);
  void open() noexcept;
  /// How often open() came too late: a GPU's queue that is full blocks the host for good, so a gate opens by itself.
  int take_late() noexcept { return late_.exchange(0); }
  /// Lets everything go that waits here, now and later, on all ranks: after a failure.
  void release() noexcept;

 private:
  struct Words;
  void keep();

  const detail::cuda::Context context_;
  const std::unique_ptr<Words> words_;
  const int rank_, size_;
  std::uint32_t epoch_ = 0;
  std::atomic<int> late_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point opens_at_;
  bool closed_ = false;
  bool ending_ = false;
  std::thread keeper_;
};

}  // namespace tandem::cli
