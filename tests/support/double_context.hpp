// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/impl.hpp"
#include "support/stream_world.hpp"
#include "transports/common/table.hpp"

namespace tandem::testing {

/// One rank of a transport that is a test double on streams of host devices; what the ranks share is in a World. Its
/// options: delay_us, seed (of the delays), and refuse, the ranks that this one does not reach ("0+2").
template <class World>
class DoubleContext {
 public:
  using Stream = detail::StreamImpl*;

  DoubleContext(const tandem_open_params& params, const plugin::Host& host)
      : host_(host), rank_(params.rank), size_(params.size) {
    std::uint64_t delay_us = 0;
    std::uint64_t seed = 0;
    plugin::parse_options(params,
                          {{"delay_us", [&](auto& v) { delay_us = plugin::parse_number("delay_us", v, 0, 1000000); }},
                           {"seed", [&](auto& v) { seed = plugin::parse_number("seed", v, 0, UINT64_MAX); }},
                           {"refuse", [&](auto& v) { refused_ = refused_peers(v); }}});
    typename World::Group group{};
    std::memcpy(group.data(), params.group, group.size());
    world_ = World::join(group, rank_, size_, delay_us, seed);
  }
  ~DoubleContext() { abort("closed"); }
  DoubleContext(const DoubleContext&) = delete;
  DoubleContext& operator=(const DoubleContext&) = delete;

  const plugin::Host& host() const { return host_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string address() const { return {}; }
  void connect(const std::vector<std::string_view>&) {}
  tandem_status connect_test(int peer) const {
    if (refused_.contains(static_cast<std::uint64_t>(peer))) return plugin::status(ErrorCode::unsupported);
    return world_->is_open(peer) ? TANDEM_OK : TANDEM_IN_PROGRESS;
  }
  std::string connect_error(int peer) const { return "there is no wire to rank " + std::to_string(peer); }
  void abort(const std::string&) { world_->abort(rank_); }

  void post(const std::vector<tandem_transfer>& transfers, Stream stream, const plugin::LaneUse& use) {
    for (const tandem_transfer& t : transfers) {
      if ((t.direction == TANDEM_RECEIVE) != use.begin)
        throw std::invalid_argument("receives begin an operation, sends do not");
    }
    world_->post(rank_, transfers, *stream, use);
  }
  void wait(Stream stream, int peer, std::uint32_t flag) { world_->wait(rank_, *stream, peer, flag); }
  void wait_sent(Stream stream) { world_->wait_sent(rank_, *stream); }
  bool arrived(int peer, std::uint32_t flag) const { return world_->arrived(rank_, peer, flag); }
  bool sent(int peer, std::uint32_t lane) const { return world_->sent(rank_, peer, lane); }

 protected:
  World& world() const { return *world_; }

 private:
  const plugin::Host host_;
  const int rank_;
  const int size_;
  std::set<std::uint64_t> refused_;
  std::shared_ptr<World> world_;
};

}  // namespace tandem::testing
