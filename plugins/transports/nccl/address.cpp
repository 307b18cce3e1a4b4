// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/address.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/bytes.hpp"
#include "tandem/error.hpp"
#include "transports/nccl/library.hpp"

namespace tandem::nccl {

std::string Address::encode() const {
  detail::ByteWriter writer;
  writer.string(std::string(gpu.begin(), gpu.end()));
  writer.i32(version);
  writer.string(unique_id);
  return writer.take();
}

Address Address::decode(std::string_view bytes) {
  detail::ByteReader reader(bytes);
  Address a;
  const std::string gpu = reader.string();
  a.version = reader.i32();
  a.unique_id = reader.string();
  reader.expect_end();
  if (gpu.size() != a.gpu.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a GPU's UUID of {} bytes, not {}", gpu.size(), a.gpu.size()));
  }
  std::copy(gpu.begin(), gpu.end(), a.gpu.begin());
  return a;
}

std::string gpu_name(const std::array<std::uint8_t, 16>& uuid) {
  const auto part = [&](int from, int to) {
    return fmt::format("{:02x}", fmt::join(uuid.begin() + from, uuid.begin() + to, ""));
  };
  return fmt::format("GPU-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16));
}

void check_together(std::span<const Address> addresses, bool may_share_gpus) {
  std::map<std::array<std::uint8_t, 16>, std::size_t> taken;
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    const Address& a = addresses[r];
    if (a.version != addresses[0].version) {
      throw Error(ErrorCode::version_mismatch,
                  fmt::format("rank 0 has NCCL {}, rank {} has {}", version_text(addresses[0].version), r,
                              version_text(a.version)),
                  static_cast<int>(r));
    }
    const auto [first, is_first] = taken.try_emplace(a.gpu, r);
    if (!is_first && !may_share_gpus) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("ranks {} and {} both use {}, and NCCL wants a GPU for each rank", first->second, r,
                              gpu_name(a.gpu)),
                  static_cast<int>(r));
    }
  }
}

}  // namespace tandem::nccl
