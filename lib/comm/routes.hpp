// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/endpoint.hpp"

namespace tandem::detail {

/// How this rank reaches one other.
struct Route {
  std::shared_ptr<Endpoint> endpoint;  ///< null for the rank itself
  std::string reason;                  ///< why this one, and what was rejected and why
};

/// What it takes to look for routes. All ranks look at once, for the same transports.
struct RouteSearch {
  int rank = 0;
  int size = 0;
  /// Names, the one to be preferred first.
  std::vector<std::string> transports;
  /// Why these: "asked for by the caller".
  std::string why;
  std::function<std::shared_ptr<Endpoint>(const std::string& transport)> open;
  /// Collective: what every rank says, by rank.
  std::function<std::vector<std::string>(const std::string& what, const std::string& mine)> collect;
  /// Throws an error that all ranks have come to, when all of them had the time to.
  std::function<void(const Error&)> disagree;
  Deadline deadline = Deadline::after(std::chrono::seconds(0));
};

/// Each pair of ranks gets the first transport that both could open, and each of them could reach the other by; all
/// ranks come to the same result. A transport that some rank cannot open serves nobody, as its group is that of all
/// ranks. If there is only one transport its own error is thrown; else, for a pair that none serves, one that says why
/// each did not.
std::vector<Route> find_routes(const RouteSearch& search);

/// "a, b,c" -> a, b, c.
std::vector<std::string> split_names(const std::string& list);

}  // namespace tandem::detail
