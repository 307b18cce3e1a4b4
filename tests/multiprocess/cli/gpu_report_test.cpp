// SPDX-License-Identifier: Apache-2.0
#include "tandem/gpu_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

using detail::Gpu;
using detail::GpuPair;
using detail::PciPath;
using detail::Topology;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

/// GPUs that can do everything, without links.
Topology made_up(int count) {
  Topology t;
  t.driver_release = "580.82.07";
  t.cuda_driver = t.cuda_runtime = 13000;
  for (int i = 0; i < count; ++i) {
    Gpu gpu;
    gpu.ordinal = i;
    gpu.name = "NVIDIA H200";
    gpu.uuid = "GPU-" + std::to_string(i);
    gpu.pci = {0, static_cast<unsigned>(0x10 + i), 0};
    gpu.numa_node = 2 * i / std::max(count, 1);
    gpu.memory_bytes = std::uint64_t{139} << 30;
    gpu.compute_major = 9;
    gpu.multiprocessors = 132;
    gpu.copy_engines = 3;
    gpu.virtual_memory = gpu.file_descriptor_export = gpu.stream_wait_and_write = gpu.stream_wait_and_write_64 =
        gpu.host_registration = gpu.registered_at_own_address = true;
    t.gpus.push_back(gpu);
    for (int j = 0; j < count; ++j) {
      if (j == i) continue;
      GpuPair pair;
      pair.from = i;
      pair.to = j;
      pair.peer_access = pair.native_atomics = true;
      pair.path = PciPath::system;
      t.pairs.push_back(pair);
    }
  }
  return t;
}

GpuPair& pair_of(Topology& t, int from, int to) { return const_cast<GpuPair&>(t.pair(from, to)); }
void set_both(Topology& t, int a, int b, PciPath path) { pair_of(t, a, b).path = pair_of(t, b, a).path = path; }

/// One NVSwitch system.
Topology switched(int count, int links) {
  Topology t = made_up(count);
  for (Gpu& gpu : t.gpus) {
    gpu.nvlinks.to_switch = links;
    gpu.nvlinks.megabytes_per_s = 26562;
  }
  for (GpuPair& pair : t.pairs) pair.nvlinks = links;
  return t;
}

TEST(LinkMatrix, NoGpuHasNone) { EXPECT_EQ(link_matrix(made_up(0)), ""); }

TEST(LinkMatrix, OneGpu) {
  EXPECT_EQ(link_matrix(made_up(1)),
            "         gpu0   NUMA\n"
            "  gpu0   X      0\n"
            "\n"
            "  X     itself\n");
}

TEST(LinkMatrix, TwoGpusOfAnNvSwitchSystem) {
  EXPECT_EQ(link_matrix(switched(2, 18)),
            "         gpu0   gpu1   NUMA\n"
            "  gpu0   X      NV18   0\n"
            "  gpu1   NV18   X      1\n"
            "\n"
            "  X     itself\n"
            "  NV#   that many NVLinks\n");
}

TEST(LinkMatrix, FourGpusOnPcieWithABridgeBetweenTwo) {
  Topology t = made_up(4);
  set_both(t, 0, 1, PciPath::one_switch);
  set_both(t, 0, 2, PciPath::host_bridge);
  pair_of(t, 2, 3).nvlinks = pair_of(t, 3, 2).nvlinks = 4;
  t.gpus[3].numa_node = -1;
  EXPECT_EQ(link_matrix(t),
            "         gpu0   gpu1   gpu2   gpu3   NUMA\n"
            "  gpu0   X      PIX    PHB    SYS    0\n"
            "  gpu1   PIX    X      SYS    SYS    0\n"
            "  gpu2   PHB    SYS    X      NV4    1\n"
            "  gpu3   SYS    SYS    NV4    X      ?\n"
            "\n"
            "  X     itself\n"
            "  NV#   that many NVLinks\n"
            "  PIX   at most one PCIe bridge\n"
            "  PHB   a PCIe host bridge, as a rule the CPU\n"
            "  SYS   PCIe and the way between NUMA nodes\n");
}

TEST(LinkMatrix, EightGpusHaveARowAndAColumnEach) {
  const std::string text = link_matrix(switched(8, 18));
  for (int i = 0; i < 8; ++i) {
    std::string row = "  gpu" + std::to_string(i) + "   ";
    for (int j = 0; j < 8; ++j) row += i == j ? "X      " : "NV18   ";
    EXPECT_THAT(text, HasSubstr(row + std::to_string(i / 4) + "\n"));
  }
}

TEST(LinkMatrix, TheWayThereMayDifferFromTheWayBack) {
  Topology t = made_up(2);
  pair_of(t, 0, 1).nvlinks = 6;
  EXPECT_THAT(link_matrix(t), HasSubstr("  gpu0   X      NV6    0\n  gpu1   SYS    X      1\n"));
}

TEST(GpuText, WithoutNvmlLinksAreUnknownAndTheReasonIsSaid) {
  Topology t = made_up(2);
  t.no_links = "libnvidia-ml.so.1 cannot be loaded: no such file";
  t.driver_release = "";
  for (GpuPair& pair : t.pairs) pair.path = PciPath::unknown;
  const std::string text = gpu_text(t);
  EXPECT_THAT(text, HasSubstr("  gpu0   X      ?      0\n"));
  EXPECT_THAT(text, HasSubstr("?     not known"));
  EXPECT_THAT(text, HasSubstr("NVLinks and PCIe ways are not known: libnvidia-ml.so.1 cannot be loaded: no such file"));
  EXPECT_THAT(text, Not(HasSubstr("NVLinks: ")));
  EXPECT_THAT(text, HasSubstr("peer access between all"));
  EXPECT_EQ(gpu_json(t)["no_links"], t.no_links);
}

TEST(GpuText, WithoutGpusTheReasonIsSaid) {
  Topology t;
  t.no_gpus = "no CUDA driver: libcuda.so.1 cannot be loaded";
  const std::string text = gpu_text(t);
  EXPECT_THAT(text, HasSubstr(t.no_gpus));
  EXPECT_THAT(text, Not(HasSubstr("links between")));
  const json all = gpu_json(t);
  EXPECT_EQ(all["no_gpus"], t.no_gpus);
  EXPECT_TRUE(all["driver"].is_null());
  EXPECT_TRUE(all["gpus"].empty());
  EXPECT_TRUE(all["pairs"].empty());
}

TEST(GpuText, TellsWhatEachGpuHasAndLacks) {
  Topology t = switched(2, 18);
  t.gpus[1].file_descriptor_export = t.gpus[1].stream_wait_and_write_64 = false;
  const std::string text = gpu_text(t);
  EXPECT_THAT(text, HasSubstr("driver       CUDA 13.0 (580.82.07)"));
  EXPECT_THAT(text, HasSubstr("NVIDIA H200, GPU-1\n"));
  EXPECT_THAT(text,
              HasSubstr("00000000:11:00.0, 139 GiB, compute capability 9.0, 132 multiprocessors, 3 copy engines"));
  EXPECT_THAT(text, HasSubstr("NVLinks: 18 of 26.6 GB/s each way, to switches"));
  EXPECT_THAT(text, HasSubstr("lacks: export of memory as file descriptors, the same with 64 bits\n"));
  const json gpu = gpu_json(t)["gpus"][1];
  EXPECT_EQ(gpu["can"]["file_descriptor_export"], false);
  EXPECT_EQ(gpu["can"]["virtual_memory"], true);
  EXPECT_EQ(gpu["nvlinks"], 18);
}

TEST(GpuText, NamesPairsWithoutPeerAccess) {
  Topology t = made_up(3);
  pair_of(t, 0, 2).peer_access = false;
  pair_of(t, 2, 0).peer_access = false;
  for (GpuPair& pair : t.pairs) pair.native_atomics = false;
  EXPECT_THAT(gpu_text(t), HasSubstr("peer access not from 0 to 2, 2 to 0, native atomics between none\n"));
  EXPECT_EQ(gpu_json(t)["pairs"][1], json::parse(R"({"from": 0, "to": 2, "link": "SYS", "nvlinks": 0,
    "peer_access": false, "native_atomics": false, "performance_rank": 0})"));
}

TEST(WhyUnusable, OnlyTransportsOfGpuMemoryAskForGpus) {
  tandem_transport tcp{}, p2p{}, nccl{};
  nccl.capabilities = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_DEVICE_MEMORY;
  p2p.capabilities = nccl.capabilities | TANDEM_CAP_ONE_SIDED;
  Topology none;
  none.no_gpus = "no CUDA driver";
  EXPECT_EQ(why_unusable(tcp, none), "");
  EXPECT_EQ(why_unusable(nccl, none), "no CUDA driver");
  EXPECT_EQ(why_unusable(p2p, none), "no CUDA driver");
  Topology t = made_up(2);
  EXPECT_EQ(why_unusable(p2p, t), "");
  t.gpus[1].stream_wait_and_write_64 = false;
  EXPECT_EQ(why_unusable(p2p, t), "") << "words of 64 bits are not needed";
  t.gpus[1].virtual_memory = false;
  EXPECT_EQ(why_unusable(p2p, t), "gpu 1 lacks virtual memory management");
  EXPECT_EQ(why_unusable(nccl, t), "");
}

}  // namespace
}  // namespace tandem::cli
