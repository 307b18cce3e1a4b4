// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fd.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/words.hpp"

namespace tandem::cuda_p2p {

using detail::Fd;

/// The flag words of one rank, in host memory that all ranks of the host have mapped and registered with CUDA. Only its
/// owner's streams wait for them:
/// - arrival(s, f): the receive with flag f from rank s is complete. Rank s's push stream raises it, the owner's stream
///   resets it before it posts the next operation of the lane.
/// - ready(r, l): rank r has posted its receives of lane l. Rank r's stream raises it, the owner's push stream resets
/// it
///   when it has passed.
/// - sent(r, l): the sends to rank r of lane l have been read. Only the host looks at it.
/// Values are 0 and 1 and nothing else, so that a captured graph can be replayed. They live with the host and not on a
/// GPU because a plain store must be able to release a stream: with CUDA_DEVICE_MAX_CONNECTIONS=1 any device operation
/// may stand behind the very wait that it should end. A line each, as in SignalWords.
class Board {
 public:
  static constexpr std::uint32_t flags = 6144;
  static constexpr std::uint32_t lanes = 8;

  Board() = default;
  ~Board();
  Board(Board&& other) noexcept { swap(other); }
  Board& operator=(Board&& other) noexcept {
    swap(other);
    return *this;
  }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// A new one, all words 0. Throws tandem::Error.
  static Board create(int ranks, const detail::cuda::Context& context);
  /// Another rank's. Throws tandem::Error if it cannot be one of so many ranks.
  static Board open(Fd fd, std::uint64_t bytes, int ranks, const detail::cuda::Context& context);

  bool valid() const noexcept { return memory_ != nullptr; }
  int fd() const noexcept { return fd_.get(); }
  std::uint64_t bytes() const noexcept { return bytes_; }

  using Word = detail::cuda::Word;
  Word& arrival(int sender, std::uint32_t flag) const noexcept { return word(sender, flag); }
  Word& ready(int receiver, std::uint32_t lane) const noexcept { return word(receiver, flags + lane); }
  Word& sent(int receiver, std::uint32_t lane) const noexcept { return word(receiver, flags + lanes + lane); }
  /// Raises everything: whoever waits here is released.
  void raise_all() const noexcept;

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::size_t words_per_rank = flags + 2 * lanes;
  static std::size_t size_for(int ranks) { return static_cast<std::size_t>(ranks) * words_per_rank * line; }
  static Board map(Fd fd, std::size_t bytes, const detail::cuda::Context& context);
  Word& word(int rank, std::size_t index) const noexcept {
    return *reinterpret_cast<Word*>(memory_ + (static_cast<std::size_t>(rank) * words_per_rank + index) * line);
  }
  void swap(Board& other) noexcept;

  Fd fd_;
  char* memory_ = nullptr;
  std::size_t bytes_ = 0;
  detail::cuda::Context context_;
};

}  // namespace tandem::cuda_p2p
