// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/staged_endpoint.hpp"
#include "tandem/device.hpp"

namespace tandem::detail {

/// A transport as callers name it, and how it serves a device.
struct TransportChoice {
  const tandem_transport* transport = nullptr;
  bool staged = false;  ///< what it moves passes through host memory
};

/// Host-driven transports are staged where the device is a GPU whose memory they cannot reach. "staged:NAME" is NAME,
/// staged on any device: for tests. Throws unsupported if there is no such transport or it cannot serve the device,
/// invalid_argument if it cannot be staged.
TransportChoice choose_transport(const std::string& name, const Device& device);

/// The names of `list` as routes call them: ranks of which one is staged and the other is not would not understand each
/// other, as those that are put together what others send one by one.
std::string describe_transports(const std::string& list, const Device& device);

struct EndpointOptions {
  TransportChoice choice;
  std::map<std::string, std::string> options;  ///< "tcp.interface" is for tcp alone, "interface" for all
  Device device;
  int rank = 0;
  int size = 0;
  GroupId group{};
  Endpoint::PeerFailed peer_failed;
  /// For transfers that belong to no completion: staged ones.
  StagedEndpoint::TransferFailed transfer_failed;
};

std::shared_ptr<Endpoint> open_endpoint(EndpointOptions options);

}  // namespace tandem::detail
