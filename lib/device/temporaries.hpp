// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tandem/tensor.hpp"

namespace tandem::detail {

/// Memory that only the work of one call uses.
///
/// On the host it goes with that work. On a GPU it stays, for the next call on the same stream, whose work runs after
/// this: freeing it would wait for all work of the GPU, and a graph that was captured goes on using it. What outgrows
/// its memory gets new, and the old is freed unless a capture has seen it.
class Temporaries {
 public:
  /// Memory for the tensor called `name` of the call that is being enqueued.
  Tensor take(const std::string& name, const Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape);
  /// Of device memory that is held now.
  std::uint64_t bytes() const noexcept;

 private:
  struct Slot {
    Buffer buffer;
    bool captured = false;
  };
  std::map<std::pair<std::uint64_t, std::string>, Slot> slots_;  // by stream and name
  std::vector<Buffer> outgrown_;                                 // that graphs use
};

}  // namespace tandem::detail
