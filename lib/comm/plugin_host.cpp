// SPDX-License-Identifier: Apache-2.0
#include "comm/plugin_host.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <mutex>

#include "tandem/error.hpp"

extern "C" {
const tandem_transport* tandem_transport_query_v0_loopback(void);
const tandem_transport* tandem_transport_query_v0_tcp(void);
#ifdef TANDEM_WITH_CUDA
const tandem_transport* tandem_transport_query_v0_cuda_p2p(void);
#endif
#ifdef TANDEM_WITH_NCCL
const tandem_transport* tandem_transport_query_v0_nccl(void);
#endif
}

namespace tandem::detail {

namespace {

struct Added {
  std::mutex mutex;
  std::vector<const tandem_transport*> transports;
};

Added& added() {
  static Added all;
  return all;
}

}  // namespace

void add_transport(const tandem_transport& transport) {
  const std::lock_guard lock(added().mutex);
  added().transports.push_back(&transport);
}

std::vector<const tandem_transport*> static_transports() {
  return {
      tandem_transport_query_v0_tcp(),
      tandem_transport_query_v0_loopback(),
#ifdef TANDEM_WITH_CUDA
      tandem_transport_query_v0_cuda_p2p(),
#endif
#ifdef TANDEM_WITH_NCCL
      tandem_transport_query_v0_nccl(),
#endif
  };
}

const tandem_transport& find_transport(std::string_view name) {
  std::vector<std::string_view> names;
  for (const tandem_transport* transport : static_transports()) {
    if (name == transport->name) return *transport;
    names.emplace_back(transport->name);
  }
  const std::lock_guard lock(added().mutex);
  for (const tandem_transport* transport : added().transports) {
    if (name == transport->name) return *transport;
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no transport named '{}'; there are {}", name, fmt::join(names, ", ")));
}

std::string why_unavailable(const tandem_transport& transport) {
  const bool tells = transport.struct_size >= offsetof(tandem_transport, unavailable) + sizeof(transport.unavailable) &&
                     transport.unavailable != nullptr;
  const char* const reason = tells ? transport.unavailable() : nullptr;
  return reason != nullptr ? reason : "";
}

}  // namespace tandem::detail
