// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/context.hpp"
#include "device/cuda/words.hpp"

namespace tandem::nccl {

/// The flag words of one rank, in host memory, which its own streams write and wait for. All of them are this
/// process's: what NCCL moves tells its receiver itself.
/// - arrival(s, f): the receive with flag f from rank s is complete.
/// - sent(r, l): the sends to rank r of lane l have been read. Only the host looks at it.
/// They live with the host because a plain store must be able to release a stream, whatever stands in its queues.
class FlagWords {
 public:
  static constexpr std::uint32_t flags = 6144;
  static constexpr std::uint32_t lanes = 8;
  using Word = detail::cuda::Word;

  /// All 0. Throws tandem::Error.
  FlagWords(int ranks, const detail::cuda::Context& context);
  ~FlagWords();
  FlagWords(const FlagWords&) = delete;
  FlagWords& operator=(const FlagWords&) = delete;

  Word& arrival(int sender, std::uint32_t flag) const noexcept { return word(sender, flag); }
  Word& sent(int receiver, std::uint32_t lane) const noexcept { return word(receiver, flags + lane); }
  /// Raises everything: whoever waits here is released.
  void raise_all() const noexcept;
  /// The memory is never given back: streams may still come to it.
  void abandon() noexcept { abandoned_ = true; }

 private:
  static constexpr std::size_t words_per_rank = flags + lanes;
  Word& word(int rank, std::size_t index) const noexcept {
    return words_[static_cast<std::size_t>(rank) * words_per_rank + index];
  }

  const detail::cuda::Context context_;
  const std::size_t count_;
  Word* words_ = nullptr;
  bool abandoned_ = false;
};

}  // namespace tandem::nccl
