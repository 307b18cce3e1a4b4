// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tandem/device.hpp"

namespace tandem::cli {

/// How one rank of this host reaches another.
struct RouteReport {
  int from = 0;
  int to = 0;
  std::string transport;
  std::string reason;  ///< why this one, and what was rejected and why
};

/// Makes a communicator of one rank for each device, all in this process, and asks it. Each pair once. Throws what the
/// communicator throws.
std::vector<RouteReport> report_routes(const std::vector<Device>& devices);

/// Two ranks on the host if there is no GPU or only one; else one for each GPU.
std::vector<Device> devices_for_routes();

/// The ranks, and a line for each route and reason with the pairs that have it.
std::string routes_text(const std::vector<RouteReport>& routes, const std::vector<Device>& devices);

}  // namespace tandem::cli
