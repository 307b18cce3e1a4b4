// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>

#include "tandem/device.hpp"

namespace tandem::cli {

/// What a kernel cannot avoid: useful operations, and bytes that go between it and the GPU's memory at least once.
struct Cost {
  double flops = 0;
  bool e4m3 = false;  ///< of operands
  double bytes = 0;
};

/// What one GPU does at best, by assumption: floors follow from it.
struct Rates {
  double bf16_flops = 790e12;   ///< a bf16 GEMM of 8192^3 on one H200: docs/performance.md
  double e4m3_flops = 1500e12;  ///< assumed
  double bytes = 4.3e12;        ///< assumed, of 4.8 TB/s nominal
};

/// Of the host there are none.
inline std::optional<Rates> rates_of(DeviceKind device) {
  return device == DeviceKind::cuda ? std::optional<Rates>(Rates{}) : std::nullopt;
}

inline double floor_us(const Cost& cost, const Rates& rates) {
  return 1e6 * std::max(cost.flops / (cost.e4m3 ? rates.e4m3_flops : rates.bf16_flops), cost.bytes / rates.bytes);
}

}  // namespace tandem::cli
