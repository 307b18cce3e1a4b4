// SPDX-License-Identifier: Apache-2.0
#include "device/topology.hpp"

#include <gtest/gtest.h>

#include "tandem/device.hpp"
#include "tandem/error.hpp"

namespace tandem::detail {
namespace {

constexpr PciAddress at(unsigned bus) { return {0, bus, 0}; }

TEST(Topology, DirectLinksCountByWhereTheyLead) {
  const NvLinks a{{at(2), at(2), at(3)}, 0, 25000}, b{{at(1), at(1)}, 0, 25000}, c{{at(1)}, 0, 25000};
  EXPECT_EQ(links_between(a, b, at(2)), 2);
  EXPECT_EQ(links_between(a, c, at(3)), 1);
  EXPECT_EQ(links_between(b, c, at(3)), 0);
  EXPECT_EQ(a.count(), 3);
}

TEST(Topology, ThroughSwitchesTheWayIsAsWideAsItsNarrowerEnd) {
  const NvLinks full{{}, 18, 26562}, half{{}, 9, 26562}, none;
  EXPECT_EQ(links_between(full, full, at(2)), 18);
  EXPECT_EQ(links_between(full, half, at(2)), 9);
  EXPECT_EQ(links_between(half, full, at(2)), 9);
  EXPECT_EQ(links_between(full, none, at(2)), 0);
}

TEST(Topology, LinksAreNamedAsNvidiaSmiDoes) {
  GpuPair pair;
  EXPECT_EQ(pair.link(), "?");
  const std::pair<PciPath, const char*> names[] = {{PciPath::same_board, "PSB"}, {PciPath::one_switch, "PIX"},
                                                   {PciPath::switches, "PXB"},   {PciPath::host_bridge, "PHB"},
                                                   {PciPath::numa_node, "NODE"}, {PciPath::system, "SYS"}};
  for (const auto& [path, name] : names) {
    pair.path = path;
    EXPECT_EQ(pair.link(), name);
  }
  pair.nvlinks = 18;
  EXPECT_EQ(pair.link(), "NV18") << "NVLink goes before PCIe";
}

TEST(Topology, AddressesAreWrittenAsNvidiaSmiDoes) {
  EXPECT_EQ((PciAddress{0, 0x0f, 0}).text(), "00000000:0F:00.0");
  EXPECT_EQ((PciAddress{0x10001, 0xc1, 0x1f}).text(), "00010001:C1:1F.0");
}

TEST(Topology, OfThisMachineIsComplete) {
  const Topology topology = read_topology();
  const auto count = static_cast<std::size_t>(Device::cuda_count());
  EXPECT_EQ(topology.gpus.size(), count);
  EXPECT_EQ(topology.no_gpus.empty(), count > 0);
  EXPECT_EQ(topology.pairs.size(), count * (count > 0 ? count - 1 : 0));
  for (const Gpu& gpu : topology.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, 0U);
    EXPECT_GT(gpu.multiprocessors, 0);
  }
  EXPECT_THROW(topology.pair(0, 0), Error);
}

}  // namespace
}  // namespace tandem::detail
