// SPDX-License-Identifier: Apache-2.0
#include "comm/routed_endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::detail {

RoutedEndpoint::RoutedEndpoint(std::vector<Route> routes) : routes_(std::move(routes)) {
  traits_ = {true, false, true, UINT32_MAX, UINT32_MAX};
  for (std::size_t peer = 0; peer < routes_.size(); ++peer) {
    Endpoint* const endpoint = routes_[peer].endpoint.get();
    if (endpoint == nullptr || std::find(all_.begin(), all_.end(), endpoint) != all_.end()) continue;
    all_.push_back(endpoint);
    const Traits t = endpoint->traits();
    const std::string name = endpoint->name(static_cast<int>(peer));
    if (!t.stream_ordered)
      throw Error(ErrorCode::unsupported, fmt::format("{} cannot serve some ranks while others have another", name));
    if (t.one_sided && traits_.one_sided)
      throw Error(ErrorCode::unsupported, fmt::format("{} is the second transport that writes to peers", name));
    traits_.one_sided |= t.one_sided;
    traits_.captures &= t.captures;
    traits_.flag_limit = std::min(traits_.flag_limit, t.flag_limit);
    traits_.lane_limit = std::min(traits_.lane_limit, t.lane_limit);
  }
}

// Its regions may keep one of them: it does nothing any more.
RoutedEndpoint::~RoutedEndpoint() { abort("the communicator is closed"); }

Endpoint& RoutedEndpoint::one_sided() const {
  const auto it = std::find_if(all_.begin(), all_.end(), [](const Endpoint* e) { return e->traits().one_sided; });
  if (it == all_.end()) throw Error(ErrorCode::internal, "none of the routes writes to peers");
  return **it;
}

void RoutedEndpoint::abort(const std::string& reason) noexcept {
  for (Endpoint* const endpoint : all_) endpoint->abort(reason);
}

void RoutedEndpoint::post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) {
  for (Endpoint* const endpoint : all_) {
    std::vector<WireTransfer> its;
    std::copy_if(transfers.begin(), transfers.end(), std::back_inserter(its),
                 [&](const WireTransfer& t) { return &of(t.peer) == endpoint; });
    // An operation begins everywhere, or flags of the last one would stay up.
    if (use.begin || !its.empty()) endpoint->post(stream, its, use);
  }
}

void RoutedEndpoint::flush(const Stream& stream, std::uint32_t lane) {
  for (Endpoint* const endpoint : all_) endpoint->flush(stream, lane);
}

void RoutedEndpoint::wait_sent(const Stream& stream) {
  for (Endpoint* const endpoint : all_) endpoint->wait_sent(stream);
}

void RoutedEndpoint::reserve(std::uint32_t lane, std::size_t received, std::size_t sent) {
  for (Endpoint* const endpoint : all_) endpoint->reserve(lane, received, sent);
}

std::shared_ptr<Endpoint> join_routes(const std::vector<Route>& routes) {
  std::shared_ptr<Endpoint> first;
  for (const Route& route : routes) {
    if (!route.endpoint) continue;
    if (first && route.endpoint != first) return std::make_shared<RoutedEndpoint>(routes);
    first = route.endpoint;
  }
  return first;
}

}  // namespace tandem::detail
