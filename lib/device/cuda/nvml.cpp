// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace tandem::detail::cuda {

namespace {

// NVML's interface as far as it is used. Its header does not come with every CUDA toolkit.
using Return = int;
constexpr Return success = 0;
constexpr Return invalid_argument = 2;
using Handle = struct nvmlDevice_st*;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned ids[2];
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

struct FieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp;
  long long latency_us;
  int type;
  Return result;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long long as_long;
  } value;
};
static_assert(sizeof(FieldValue) == 40);

constexpr unsigned common_nvlink_megabytes_per_s = 90;
constexpr int p2p_over_nvlink = 2;
constexpr int remote_is_switch = 2;
constexpr int remote_is_unknown = 255;
constexpr unsigned more_links_than_any_gpu_has = 64;

}  // namespace

struct Nvml::Functions {
  void* library = nullptr;
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*driver_version)(char*, unsigned) = nullptr;
  Return (*handle_by_bus_id)(const char*, Handle*) = nullptr;
  Return (*common_ancestor)(Handle, Handle, int*) = nullptr;
  Return (*link_state)(Handle, unsigned, int*) = nullptr;
  Return (*link_remote)(Handle, unsigned, PciInfo*) = nullptr;
  // Missing in old drivers.
  Return (*link_remote_type)(Handle, unsigned, int*) = nullptr;
  Return (*field_values)(Handle, int, FieldValue*) = nullptr;
  Return (*p2p_status)(Handle, Handle, int, int*) = nullptr;

  template <class Function>
  bool find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  Handle handle(const PciAddress& gpu) const {
    Handle found = nullptr;
    return handle_by_bus_id(gpu.text().c_str(), &found) == success ? found : nullptr;
  }
};

Nvml::Nvml(const char* library) : functions_(std::make_unique<Functions>()), missing_(load(library)) {}

Nvml::~Nvml() {
  if (missing_.empty()) functions_->shutdown();
  if (functions_->library != nullptr) dlclose(functions_->library);
}

std::string Nvml::load(const char* library) {
  Functions& f = *functions_;
  f.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (f.library == nullptr) {
    const char* const why = dlerror();
    return fmt::format("{} cannot be loaded: {}", library, why != nullptr ? why : "no reason given");
  }
  const bool complete =
      f.find(f.init, "nvmlInit_v2") && f.find(f.shutdown, "nvmlShutdown") &&
      f.find(f.error_string, "nvmlErrorString") && f.find(f.driver_version, "nvmlSystemGetDriverVersion") &&
      f.find(f.handle_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
      f.find(f.common_ancestor, "nvmlDeviceGetTopologyCommonAncestor") &&
      f.find(f.link_state, "nvmlDeviceGetNvLinkState") && f.find(f.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  if (!complete) return fmt::format("{} is too old: {}", library, dlerror());
  f.find(f.link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  f.find(f.field_values, "nvmlDeviceGetFieldValues");
  f.find(f.p2p_status, "nvmlDeviceGetP2PStatus");
  const Return started = f.init();
  return started == success ? "" : fmt::format("{} does not start: {}", library, f.error_string(started));
}

std::string Nvml::driver_release() const {
  std::array<char, 96> text{};
  if (!missing_.empty() || functions_->driver_version(text.data(), text.size()) != success) return "";
  return text.data();
}

NvLinks Nvml::links(const PciAddress& gpu) const {
  NvLinks links;
  if (!missing_.empty()) return links;
  const Functions& f = *functions_;
  const Handle handle = f.handle(gpu);
  if (handle == nullptr) return links;
  for (unsigned link = 0; link < more_links_than_any_gpu_has; ++link) {
    int active = 0;
    const Return result = f.link_state(handle, link, &active);
    if (result == invalid_argument) break;  // it has no more
    if (result != success || active == 0) continue;
    int type = remote_is_unknown;
    if (f.link_remote_type != nullptr && f.link_remote_type(handle, link, &type) != success) type = remote_is_unknown;
    PciInfo remote{};
    const bool known = f.link_remote(handle, link, &remote) == success;
    // A switch that an old driver does not tell from a GPU counts as a device that is none of the GPUs.
    if (type == remote_is_switch) {
      ++links.to_switch;
    } else if (known) {
      links.devices.push_back({remote.domain, remote.bus, remote.device});
    }
  }
  FieldValue rate{};
  rate.field = common_nvlink_megabytes_per_s;
  if (links.count() > 0 && f.field_values != nullptr && f.field_values(handle, 1, &rate) == success &&
      rate.result == success)
    links.megabytes_per_s = rate.value.as_unsigned;
  return links;
}

PciPath Nvml::path(const PciAddress& a, const PciAddress& b) const {
  if (!missing_.empty()) return PciPath::unknown;
  const Handle first = functions_->handle(a);
  const Handle second = functions_->handle(b);
  int level = -1;
  if (first == nullptr || second == nullptr || functions_->common_ancestor(first, second, &level) != success)
    return PciPath::unknown;
  switch (level) {
    case 0:
      return PciPath::same_board;
    case 10:
      return PciPath::one_switch;
    case 20:
      return PciPath::switches;
    case 30:
      return PciPath::host_bridge;
    case 40:
      return PciPath::numa_node;
    case 50:
      return PciPath::system;
    default:
      return PciPath::unknown;
  }
}

std::optional<bool> Nvml::nvlink_usable(const PciAddress& a, const PciAddress& b) const {
  if (!missing_.empty() || functions_->p2p_status == nullptr) return std::nullopt;
  const Handle first = functions_->handle(a);
  const Handle second = functions_->handle(b);
  int status = 0;
  if (first == nullptr || second == nullptr ||
      functions_->p2p_status(first, second, p2p_over_nvlink, &status) != success)
    return std::nullopt;
  return status == 0;
}

}  // namespace tandem::detail::cuda
