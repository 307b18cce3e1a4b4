// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::fake_nccl {

/// What goes from one rank to another, through one slot of host memory.
struct Pipe {
  static constexpr std::size_t remembered = 4096;
  alignas(64) std::atomic<std::uint32_t> full;   ///< 1: the slot has a piece; the receiver's stream waits for it
  alignas(64) std::atomic<std::uint32_t> empty;  ///< 1: it has been taken; the sender's stream waits for it
  alignas(64) std::atomic<std::uint64_t> sends, receives;  ///< how many have been enqueued
  std::atomic<std::uint64_t> sent[remembered], received[remembered];
};

/// Memory that the ranks of one communicator share. Its name is in the unique id.
class Meeting {
 public:
  static constexpr int most_ranks = 8;
  static constexpr std::size_t slot_bytes = std::size_t{256} << 10;

  /// A new one of this name. False if that cannot be.
  static bool create(const std::string& name);
  /// Maps it. Throws std::system_error.
  Meeting(const std::string& name, int size);
  /// `rank` is here. The last one removes the name.
  void attach(int rank, const std::string& name);

  bool complete() const { return head_->attached.load() == static_cast<std::uint32_t>(size_); }
  bool all_finalized() const { return head_->finalized.load() == static_cast<std::uint32_t>(size_); }
  void finalize() { ++head_->finalized; }
  bool broken() const { return head_->broken.load() != 0; }

  Pipe& pipe(int from, int to) const { return pipes_[index(from, to)]; }
  char* slot(int from, int to) const { return slots_ + index(from, to) * slot_bytes; }
  /// What a rank waits for that is to hang.
  std::atomic<std::uint32_t>& never(int rank) const { return head_->never[rank]; }
  char* memory() const { return reinterpret_cast<char*>(head_); }
  std::size_t bytes() const { return bytes_for(size_); }

  /// The next message from one rank to another is `what`, a number for its bytes and type. Says loudly if the other
  /// end's message of the same turn is something else; nothing works from then on.
  void note(int from, int to, bool sends, std::uint64_t what);

 private:
  struct Head {
    std::atomic<std::uint32_t> attached, finalized, broken;
    std::atomic<std::uint32_t> never[most_ranks];
  };
  static constexpr std::size_t head_bytes = 4096;
  static std::size_t bytes_for(int size) {
    return head_bytes + static_cast<std::size_t>(size * size) * (sizeof(Pipe) + slot_bytes);
  }
  std::size_t index(int from, int to) const { return static_cast<std::size_t>(from * size_ + to); }

  const int size_;
  Head* head_ = nullptr;
  Pipe* pipes_ = nullptr;
  char* slots_ = nullptr;
};

}  // namespace tandem::fake_nccl
