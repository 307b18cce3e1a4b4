// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem::nccl {

/// What a rank tells its peers.
struct Address {
  std::array<std::uint8_t, 16> gpu{};  ///< its UUID, which no other GPU in the world has
  std::int32_t version = 0;            ///< of NCCL
  std::string unique_id;               ///< rank 0's ncclUniqueId; the others' is empty

  std::string encode() const;
  /// Throws invalid_argument.
  static Address decode(std::string_view bytes);
};

/// "GPU-5e1f...", as nvidia-smi writes it.
std::string gpu_name(const std::array<std::uint8_t, 16>& uuid);

/// NCCL hangs or fails obscurely where ranks do not fit together, so they are compared before it is called. `addresses`
/// are those of all ranks. Throws, naming the two ranks: version_mismatch for two versions of NCCL, and, unless they
/// may, unsupported for two ranks on one GPU.
void check_together(std::span<const Address> addresses, bool may_share_gpus);

}  // namespace tandem::nccl
