// SPDX-License-Identifier: Apache-2.0
#include "device/topology.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tandem/error.hpp"

namespace tandem::detail {

std::string PciAddress::text() const { return fmt::format("{:08X}:{:02X}:{:02X}.0", domain, bus, device); }

int links_between(const NvLinks& from, const NvLinks& to, const PciAddress& to_address) {
  const auto direct = std::count(from.devices.begin(), from.devices.end(), to_address);
  return static_cast<int>(direct) + std::min(from.to_switch, to.to_switch);
}

std::string GpuPair::link() const {
  if (nvlinks > 0) return fmt::format("NV{}", nvlinks);
  switch (path) {
    case PciPath::unknown:
      return "?";
    case PciPath::same_board:
      return "PSB";
    case PciPath::one_switch:
      return "PIX";
    case PciPath::switches:
      return "PXB";
    case PciPath::host_bridge:
      return "PHB";
    case PciPath::numa_node:
      return "NODE";
    case PciPath::system:
      return "SYS";
  }
  return "?";
}

const GpuPair& Topology::pair(int from, int to) const {
  const auto it =
      std::find_if(pairs.begin(), pairs.end(), [&](const GpuPair& p) { return p.from == from && p.to == to; });
  if (it == pairs.end()) throw Error(ErrorCode::invalid_argument, fmt::format("no pair of GPUs {} and {}", from, to));
  return *it;
}

}  // namespace tandem::detail
