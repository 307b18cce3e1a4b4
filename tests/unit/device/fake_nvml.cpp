// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnvidia-ml.so.1, with four GPUs: those on buses 1 and 2 have two NVLinks to each other, one to a
// device that is no GPU, and one that is down; those on buses 3 and 4 have three to switches. Bus 4's cannot be used.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int success = 0, invalid_argument = 2, not_found = 6;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, ids[2];
  char bus_id[32];
};

struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, result;
  unsigned long long value;
};

struct Gpu {
  unsigned bus;
};
Gpu gpus[] = {{1}, {2}, {3}, {4}};

bool has_switches(const Gpu* gpu) { return gpu->bus >= 3; }

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVML's
extern "C" {
int nvmlInit_v2() { return std::getenv("TANDEM_TEST_NVML_FAILS") != nullptr ? 9 : success; }
int nvmlShutdown() { return success; }
const char* nvmlErrorString(int result) { return result == 9 ? "Driver Not Loaded" : "another"; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::snprintf(text, length, "580.1.2");
  return success;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Gpu** out) {
  unsigned domain = 0, bus = 0, device = 0;
  if (std::sscanf(bus_id, "%8x:%2x:%2x.0", &domain, &bus, &device) != 3) return invalid_argument;
  for (Gpu& gpu : gpus) {
    if (domain == 0 && gpu.bus == bus && device == 0) {
      *out = &gpu;
      return success;
    }
  }
  return not_found;
}
int nvmlDeviceGetTopologyCommonAncestor(Gpu* a, Gpu* b, int* level) {
  *level = (a->bus > 2) == (b->bus > 2) ? 20 : 50;
  return success;
}
int nvmlDeviceGetNvLinkState(Gpu* gpu, unsigned link, int* active) {
  if (link >= (has_switches(gpu) ? 3U : 4U)) return invalid_argument;
  *active = has_switches(gpu) || link != 1;
  return success;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu* gpu, unsigned, int* type) {
  *type = has_switches(gpu) ? 2 : 0;
  return success;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu* gpu, unsigned link, PciInfo* out) {
  std::memset(out, 0, sizeof(*out));
  out->bus = link == 3 ? 0x77 : 3 - gpu->bus;
  return success;
}
int nvmlDeviceGetFieldValues(Gpu*, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    values[i].result = values[i].field == 90 ? success : invalid_argument;
    values[i].value = 26562;
  }
  return success;
}
int nvmlDeviceGetP2PStatus(Gpu* a, Gpu* b, int capability, int* status) {
  *status = capability == 2 && (a->bus == 4 || b->bus == 4) ? 5 : 0;
  return success;
}
}
// NOLINTEND(readability-identifier-naming)
