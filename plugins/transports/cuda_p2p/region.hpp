// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <bit>
#include <cstdint>

#include "base/fd.hpp"
#include "device/cuda/context.hpp"

namespace tandem::cuda_p2p {

using detail::Fd;

/// GPU memory that can be mapped into several processes: made here and exported as a file descriptor, or another rank's
/// made from one. Unlike cudaIpc handles the descriptor needs no common namespaces, and the memory stays valid here
/// when the process that made it dies.
class Region {
 public:
  Region() = default;
  ~Region();
  Region(Region&& other) noexcept { swap(other); }
  Region& operator=(Region&& other) noexcept {
    swap(other);
    return *this;
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// At least `bytes`. Throws tandem::Error: out_of_memory, unsupported, device.
  static Region create(std::uint64_t bytes, const detail::cuda::Context& context);
  /// Throws unsupported if this GPU cannot reach that memory.
  static Region open(Fd fd, std::uint64_t bytes, const detail::cuda::Context& context);

  void* data() const noexcept { return std::bit_cast<void*>(address_); }
  /// Of the mapping: what open() wants to know.
  std::uint64_t bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_.get(); }
  bool valid() const noexcept { return address_ != 0; }

 private:
  void map();
  void swap(Region& other) noexcept;

  detail::cuda::Context context_;
  Fd fd_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
  bool reserved_ = false;
  bool mapped_ = false;
};

}  // namespace tandem::cuda_p2p
