// SPDX-License-Identifier: Apache-2.0
#include "comm/open_endpoint.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "comm/plugin_host.hpp"
#include "comm/routes.hpp"
#include "device/impl.hpp"

namespace tandem::detail {

namespace {

std::map<std::string, std::string> options_of(const std::map<std::string, std::string>& all,
                                              const std::string& transport) {
  std::map<std::string, std::string> its;
  for (const auto& [key, value] : all) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos) {
      its[key] = value;
    } else if (key.substr(0, dot) == transport) {
      its[key.substr(dot + 1)] = value;
    }
  }
  return its;
}

}  // namespace

TransportChoice choose_transport(const std::string& name, const Device& device) {
  constexpr std::string_view prefix = "staged:";
  const bool forced = name.starts_with(prefix);
  const tandem_transport& transport = find_transport(forced ? std::string_view(name).substr(prefix.size()) : name);
  const bool stream_ordered = (transport.capabilities & TANDEM_CAP_STREAM_ORDERED) != 0;
  const bool reaches_device =
      device.kind() != DeviceKind::cuda || (transport.capabilities & TANDEM_CAP_DEVICE_MEMORY) != 0;
  if ((transport.capabilities & TANDEM_CAP_NEEDS_PROGRESS) != 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("transport {} has no thread of its own, and nothing here drives it", transport.name));
  }
  if (forced && stream_ordered) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("transport {}: {} serves streams by itself and cannot be staged", name, transport.name));
  }
  if (stream_ordered && !reaches_device) {
    throw Error(ErrorCode::unsupported, fmt::format("transport {} cannot move memory of {}", name, device.describe()));
  }
  return {&transport, forced || (!stream_ordered && device.kind() == DeviceKind::cuda)};
}

std::string describe_transports(const std::string& list, const Device& device) {
  std::string out;
  for (const std::string& name : split_names(list)) {
    const TransportChoice choice = choose_transport(name, device);
    if (!out.empty()) out += "; ";
    out += choice.staged ? StagedEndpoint::name_of(choice.transport->name) : choice.transport->name;
  }
  return out;
}

std::shared_ptr<Endpoint> open_endpoint(EndpointOptions o) {
  const tandem_transport& transport = *o.choice.transport;
  // A staged transport sees the host's memory alone.
  const int cuda_device = o.choice.staged ? -1 : o.device.impl().cuda_ordinal();
  auto endpoint = std::make_shared<PluginEndpoint>(
      transport, o.rank, o.size, o.group, options_of(o.options, transport.name), cuda_device, std::move(o.peer_failed));
  if (!o.choice.staged) return endpoint;
  return std::make_shared<StagedEndpoint>(std::move(endpoint), std::move(o.device), std::move(o.transfer_failed));
}

}  // namespace tandem::detail
