// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tandem/device.hpp"

namespace tandem::detail {

/// Memory that one stream's work fills, for results that callers keep as long as they like. What they let go of is
/// given out again, for work that the same stream is given later and so does later. Freeing it instead would hold up
/// the host until the GPU is idle.
///
/// Idle memory of a stream is at most as much as was in use at once. Any thread may let go of memory, also after this
/// is gone.
class StreamMemory {
 public:
  using Allocate = std::function<Buffer(std::size_t bytes)>;
  explicit StreamMemory(Allocate allocate);

  /// At least `bytes` for work of the stream with this id. Throws what `allocate` throws; if that is out_of_memory,
  /// then after all idle memory was given back.
  Buffer take(std::uint64_t stream, std::size_t bytes);
  /// Of memory that nobody uses now.
  std::uint64_t idle_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tandem::detail
