// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What the GPUs of this process are, what they can do, and how they are linked: facts, for people and for the choice
/// of transports.
namespace tandem::detail {

struct PciAddress {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;

  bool operator==(const PciAddress&) const = default;
  /// As nvidia-smi writes it: 00000000:0F:00.0.
  std::string text() const;
};

/// One GPU's active NVLinks by what is at their other end.
struct NvLinks {
  std::vector<PciAddress> devices;  ///< of links that lead to a device: one entry a link
  int to_switch = 0;                ///< links that lead to an NVSwitch
  unsigned megabytes_per_s = 0;     ///< of one link in one direction; 0 if unknown

  int count() const { return static_cast<int>(devices.size()) + to_switch; }
};

/// How many NVLinks serve the way from one GPU to another. Through switches it is all that both have.
int links_between(const NvLinks& from, const NvLinks& to, const PciAddress& to_address);

/// Where the PCIe ways of two GPUs meet, from near to far.
enum class PciPath { unknown, same_board, one_switch, switches, host_bridge, numa_node, system };

struct Gpu {
  int ordinal = 0;
  std::string name;
  std::string uuid;
  PciAddress pci;
  int numa_node = -1;  ///< -1 if unknown
  std::uint64_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int copy_engines = 0;

  bool virtual_memory = false;          ///< cuMemCreate, cuMemMap and what belongs to them
  bool file_descriptor_export = false;  ///< such memory can be given to other processes
  bool stream_wait_and_write = false;   ///< streams wait for and write words of 32 bits
  bool stream_wait_and_write_64 = false;
  bool host_registration = false;          ///< of memory that the process has
  bool registered_at_own_address = false;  ///< the GPU sees it where the process does

  NvLinks nvlinks;
};

/// The way from one GPU to another.
struct GpuPair {
  int from = 0;
  int to = 0;
  bool peer_access = false;
  bool native_atomics = false;
  int performance_rank = 0;  ///< CUDA's: the lower, the faster
  int nvlinks = 0;
  PciPath path = PciPath::unknown;

  /// As in nvidia-smi's matrix: NV18, PIX, PXB, PHB, NODE, SYS; PSB on one board; "?" if nothing tells.
  std::string link() const;
};

struct Topology {
  std::string no_gpus;         ///< why `gpus` is empty
  std::string no_links;        ///< why NVLinks and PCIe ways are not known: NVML is missing
  std::string driver_release;  ///< of the kernel driver, "580.82.07"; "" without NVML
  int cuda_driver = 0;         ///< the CUDA version that the driver is for, 13000 is 13.0; 0 without one
  int cuda_runtime = 0;        ///< that this build was linked with; 0 in a build without CUDA code
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< every ordered pair of different GPUs, by `from`, then `to`

  const GpuPair& pair(int from, int to) const;
};

/// Asks CUDA and, where libnvidia-ml.so.1 can be loaded, NVML. Makes no context and changes no thread's current device.
/// What cannot be read stays at its default, so it does not throw for want of a GPU, a driver or NVML.
Topology read_topology();

}  // namespace tandem::detail
