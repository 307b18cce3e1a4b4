// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/context.hpp"
#include "device/host/flag.hpp"
#include "device/impl.hpp"

/// Signals of GPU devices: 32-bit words in page-locked memory that all GPUs of the process have mapped. A stream waits
/// with a stream memory operation, the host sets with a plain store. No stream is involved in setting: a write enqueued
/// on a stream could stand in the hardware queue behind the very wait that it should end
/// (CUDA_DEVICE_MAX_CONNECTIONS=1).
///
/// Words are used again, and never reset. A word only ever counts up: its next user waits for "at least one more than
/// now", set stores that number. A signal that goes unset is set first. So
/// - a new wait is not satisfied by what earlier users stored, for that is less than its target;
/// - a wait for an earlier target that the GPU has not come to yet is satisfied already, and stays so. Resetting the
///   word instead would have to wait for all streams that may still have such a wait ahead of them, and nobody knows
///   them: streams do not say what they have passed.
/// The comparison is cyclic (the difference as a signed number), so that counting past 2^32 is harmless; only a stream
/// that stays away for 2^31 uses of one word could be deceived.
///
/// Each word has a cache line of its own. A waiting GPU reads the line over and over, each read takes it out of the
/// setting core's cache, and a transport sets its arrivals one right after the other: words that share a line would
/// make each of these stores fetch it back. Denser would save little: 64 bytes for each chunk in flight.
namespace tandem::detail::cuda {

/// What one signal has of the pool.
struct SignalWord {
  std::atomic<std::uint32_t>* value = nullptr;
  std::uint32_t target = 0;
};

/// The process' words. They are never given back to the system: a stream that has still to pass a wait may outlive all
/// objects of this library, and must find the word there.
class SignalWords {
 public:
  static SignalWords& instance();

  /// Makes room for `count` signals at once, so that fewer allocations meet streams that wait.
  void reserve(const Context& context, std::size_t count);
  SignalWord take(const Context& context);
  /// The word must have reached its target.
  void give(SignalWord word) noexcept;

 private:
  void grow(const Context& context);  // with the mutex held

  std::mutex mutex_;
  std::vector<std::atomic<std::uint32_t>*> free_;  // has room for all words there are, so that give() cannot fail
  std::size_t made_ = 0;
};

class CudaSignal final : public SignalImpl {
 public:
  explicit CudaSignal(const Context& context) : word_(SignalWords::instance().take(context)) {}
  ~CudaSignal() override;
  CudaSignal(const CudaSignal&) = delete;
  CudaSignal& operator=(const CudaSignal&) = delete;

  void set() noexcept override;
  bool is_set() const noexcept override { return flag_.is_set(); }
  bool wait(Deadline deadline) const override { return flag_.wait(deadline); }
  const SignalWord& word() const noexcept { return word_; }

 private:
  const SignalWord word_;
  HostFlag flag_;  // for waiters on the host
};

/// A word that a stream writes when it gets there.
class CudaMark final : public MarkImpl {
 public:
  explicit CudaMark(const Context& context) : word_(SignalWords::instance().take(context)) {}
  /// The word of a mark that was not reached is given up: the stream still writes it.
  ~CudaMark() override;
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  bool reached() const noexcept override;
  const SignalWord& word() const noexcept { return word_; }

 private:
  const SignalWord word_;
};

}  // namespace tandem::detail::cuda
