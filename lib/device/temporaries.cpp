// SPDX-License-Identifier: Apache-2.0
#include "device/temporaries.hpp"

#include <cstddef>

#include "device/impl.hpp"

namespace tandem::detail {

Tensor Temporaries::take(const std::string& name, const Stream& stream, DType dtype,
                         std::initializer_list<std::int64_t> shape) {
  if (stream.device().kind() == DeviceKind::host) return Tensor::allocate(stream.device(), dtype, shape);
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  Slot& slot = slots_[{stream.impl().id(), name}];
  if (slot.buffer.data() == nullptr || slot.buffer.bytes() < bytes) {
    if (slot.captured) outgrown_.push_back(slot.buffer);
    slot = {stream.device().allocate(bytes), false};
  }
  slot.captured = slot.captured || stream.impl().capture() != 0;
  return Tensor::view(slot.buffer, 0, dtype, shape);
}

std::uint64_t Temporaries::bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& [name, slot] : slots_) total += slot.buffer.bytes();
  for (const Buffer& buffer : outgrown_) total += buffer.bytes();
  return total;
}

}  // namespace tandem::detail
