// SPDX-License-Identifier: Apache-2.0
#include "comm/plugin_host.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tandem/error.hpp"

extern "C" {
const tandem_transport* tandem_transport_query_v0_loopback(void);
const tandem_transport* tandem_transport_query_v0_tcp(void);
}

namespace tandem::detail {

std::vector<const tandem_transport*> static_transports() {
  return {tandem_transport_query_v0_tcp(), tandem_transport_query_v0_loopback()};
}

const tandem_transport& find_transport(std::string_view name) {
  std::vector<std::string_view> names;
  for (const tandem_transport* transport : static_transports()) {
    if (name == transport->name) return *transport;
    names.emplace_back(transport->name);
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no transport named '{}'; there are {}", name, fmt::join(names, ", ")));
}

}  // namespace tandem::detail
