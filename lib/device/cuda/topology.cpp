// SPDX-License-Identifier: Apache-2.0
#include "device/topology.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <optional>

#include "device/cuda/driver.hpp"
#include "device/cuda/nvml.hpp"
#include "tandem/device.hpp"

namespace tandem::detail {

namespace {

/// False, and no error left behind, if CUDA does not tell.
bool told(cudaError_t result) {
  if (result == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  return told(cudaDeviceGetAttribute(&value, which, ordinal)) ? value : 0;
}

/// Those that the runtime has no name for.
bool driver_attribute(CUdevice_attribute which, int ordinal) {
  CUdevice device = 0;
  int value = 0;
  return cuda::driver().cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
         cuda::driver().cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

/// What streams and memory can do needs the driver's functions as much as the GPU.
void read_driver_attributes(Gpu& gpu) {
  try {
    static_cast<void>(cuda::driver());
  } catch (const Error&) {
    return;
  }
  gpu.stream_wait_and_write = true;  // of every GPU, where the driver has the functions in use
  gpu.stream_wait_and_write_64 = driver_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu.ordinal);
  gpu.virtual_memory = driver_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu.ordinal);
  gpu.file_descriptor_export =
      driver_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu.ordinal);
}

Gpu read_gpu(int ordinal, const cuda::Nvml& nvml) {
  Gpu gpu;
  gpu.ordinal = ordinal;
  cudaDeviceProp properties{};
  if (told(cudaGetDeviceProperties(&properties, ordinal))) {
    gpu.name = properties.name;
    gpu.uuid = uuid_text(properties.uuid);
    gpu.memory_bytes = properties.totalGlobalMem;
  }
  gpu.pci = {static_cast<unsigned>(attribute(cudaDevAttrPciDomainId, ordinal)),
             static_cast<unsigned>(attribute(cudaDevAttrPciBusId, ordinal)),
             static_cast<unsigned>(attribute(cudaDevAttrPciDeviceId, ordinal))};
  int numa_node = -1;
  if (told(cudaDeviceGetAttribute(&numa_node, cudaDevAttrHostNumaId, ordinal))) gpu.numa_node = numa_node;
  gpu.compute_major = attribute(cudaDevAttrComputeCapabilityMajor, ordinal);
  gpu.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  gpu.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, ordinal);
  gpu.copy_engines = attribute(cudaDevAttrAsyncEngineCount, ordinal);
  gpu.host_registration = attribute(cudaDevAttrHostRegisterSupported, ordinal) != 0;
  gpu.registered_at_own_address = attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal) != 0;
  read_driver_attributes(gpu);
  gpu.nvlinks = nvml.links(gpu.pci);
  return gpu;
}

GpuPair read_pair(const Gpu& from, const Gpu& to, const cuda::Nvml& nvml) {
  GpuPair pair;
  pair.from = from.ordinal;
  pair.to = to.ordinal;
  int value = 0;
  pair.peer_access = told(cudaDeviceCanAccessPeer(&value, from.ordinal, to.ordinal)) && value != 0;
  const auto p2p = [&](cudaDeviceP2PAttr which) {
    int found = 0;
    return told(cudaDeviceGetP2PAttribute(&found, which, from.ordinal, to.ordinal)) ? found : 0;
  };
  pair.native_atomics = p2p(cudaDevP2PAttrNativeAtomicSupported) != 0;
  pair.performance_rank = p2p(cudaDevP2PAttrPerformanceRank);
  const bool usable = nvml.nvlink_usable(from.pci, to.pci).value_or(true);
  pair.nvlinks = usable ? links_between(from.nvlinks, to.nvlinks, to.pci) : 0;
  pair.path = nvml.path(from.pci, to.pci);
  return pair;
}

}  // namespace

Topology read_topology() {
  Topology topology;
  static_cast<void>(told(cudaDriverGetVersion(&topology.cuda_driver)));
  topology.cuda_runtime = CUDART_VERSION;
  const cuda::Nvml nvml;
  topology.no_links = nvml.missing();
  topology.driver_release = nvml.driver_release();
  const int count = Device::cuda_count();
  if (count == 0) {
    try {
      Device::cuda(0);
    } catch (const Error& e) {
      topology.no_gpus = e.what();
    }
  }
  for (int i = 0; i < count; ++i) topology.gpus.push_back(read_gpu(i, nvml));
  for (const Gpu& from : topology.gpus) {
    for (const Gpu& to : topology.gpus) {
      if (from.ordinal != to.ordinal) topology.pairs.push_back(read_pair(from, to, nvml));
    }
  }
  return topology;
}

}  // namespace tandem::detail
