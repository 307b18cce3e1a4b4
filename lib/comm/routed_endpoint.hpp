// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/endpoint.hpp"
#include "comm/routes.hpp"

namespace tandem::detail {

/// Several connected, stream-ordered endpoints of one group as one: each pair of ranks has one of them. At most one of
/// them may be one-sided, and its regions are everybody's arenas.
class RoutedEndpoint final : public Endpoint {
 public:
  /// `routes` by rank. Throws unsupported if they cannot be put together.
  explicit RoutedEndpoint(std::vector<Route> routes);
  ~RoutedEndpoint() override;

  Traits traits() const noexcept override { return traits_; }
  std::string name(int peer) const override { return of(peer).name(peer); }
  void abort(const std::string& reason) noexcept override;
  void post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) override;
  void flush(const Stream& stream, std::uint32_t lane) override;
  void wait(const Stream& stream, int peer, std::uint32_t flag) override { of(peer).wait(stream, peer, flag); }
  void wait_sent(const Stream& stream) override;
  bool arrived(int peer, std::uint32_t flag) const noexcept override { return of(peer).arrived(peer, flag); }
  bool sent(int peer, std::uint32_t lane) const noexcept override { return of(peer).sent(peer, lane); }
  bool places_on_wait(int peer) const noexcept override { return of(peer).places_on_wait(peer); }
  void reserve(std::uint32_t lane, std::size_t received, std::size_t sent) override;
  Region allocate(std::size_t bytes) override { return one_sided().allocate(bytes); }
  std::string describe(std::uint64_t region) override { return one_sided().describe(region); }
  void attach(std::uint64_t region, std::span<const std::string> blobs) override { one_sided().attach(region, blobs); }

 private:
  Endpoint& of(int peer) const { return *routes_[static_cast<std::size_t>(peer)].endpoint; }
  Endpoint& one_sided() const;

  const std::vector<Route> routes_;
  std::vector<Endpoint*> all_;  // each once, in the order of the first peer that has it
  Traits traits_;
};

/// One endpoint for all peers.
std::shared_ptr<Endpoint> join_routes(const std::vector<Route>& routes);

}  // namespace tandem::detail
