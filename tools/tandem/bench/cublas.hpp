// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "device/cuda/context.hpp"
#include "tandem/device.hpp"

namespace tandem::cli {

/// bf16 products of two random square matrices by cuBLAS, which is loaded when one is made.
class Gemm {
 public:
  static constexpr int extent = 8192;

  /// Blocks. Throws unsupported, saying why, if cuBLAS is not found or the build has no header of it.
  explicit Gemm(const Device& device);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Enqueues one.
  void run(const Stream& stream) const;

 private:
  struct Library;
  const std::unique_ptr<Library> library_;
  const detail::cuda::Context context_;
  Buffer a_, b_, c_, workspace_;
};

}  // namespace tandem::cli
