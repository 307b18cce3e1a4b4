// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <random>

#include "transports/common/table.hpp"
#include "transports/loopback/group.hpp"

namespace tandem::loopback {
namespace {

/// What tells this process from every other, forked children included.
struct Address {
  char magic[8];
  std::uint64_t cookie;
  std::int64_t process;
};

std::string own_address() {
  static const std::uint64_t cookie = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  const Address own{{'t', 'a', 'n', 'd', 'e', 'm', 'l', 'b'}, cookie, getpid()};
  return {reinterpret_cast<const char*>(&own), sizeof(own)};
}

/// A member of a group, and whom of it this one can reach.
class Member {
 public:
  Member(const GroupId& id, int rank, int size, const Options& options, const plugin::Host& host)
      : host_(host), group_(Group::join(id, size, rank, options, host)), rank_(rank), size_(size) {}
  ~Member() {
    plugin::guarded(host_, "loopback", [&] {
      group_->leave(rank_);
      return tandem_status{TANDEM_OK};
    });
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const plugin::Host& host() const { return host_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string address() const { return own_address(); }

  void connect(const std::vector<std::string_view>& addresses) {
    const std::string own = own_address();
    for (const std::string_view address : addresses) {
      if (address != own)
        host_.log(TANDEM_LOG_ERROR, "loopback: rank {} is not in the process of rank {}", reachable_.size(), rank_);
      reachable_.push_back(address == own);
    }
  }

  tandem_status connect_test(int peer) const {
    if (reachable_.empty()) return TANDEM_IN_PROGRESS;
    if (!reachable_[static_cast<std::size_t>(peer)]) return plugin::status(ErrorCode::transport);
    return group_->test_peer(peer);
  }

  void post(const std::vector<tandem_transfer>& transfers, tandem_completion_fn on_complete, void* user) {
    group_->post(rank_, transfers, on_complete, user);
  }

  void abort(const std::string& reason) { group_->abort(rank_, reason); }

 private:
  const plugin::Host host_;
  const std::shared_ptr<Group> group_;
  const int rank_;
  const int size_;
  std::vector<bool> reachable_;  // empty until connect
};

struct Transport {
  using Context = Member;
  static constexpr std::uint32_t capabilities = 0;
  static constexpr const char* name = "loopback";
  static constexpr const char* description = "ranks that are threads of one process; with delays and gates, for tests";
  static constexpr const char* option_help =
      "delay_us: each transfer waits a random time up to this many microseconds before it moves (0)\n"
      "seed: of the delays; the same seed gives the same delays (0)\n";

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    Options options;
    constexpr std::uint64_t one_minute = 60'000'000;
    plugin::parse_options(
        params, {{"delay_us", [&](auto& v) { options.delay_us = plugin::parse_number("delay_us", v, 0, one_minute); }},
                 {"seed", [&](auto& v) { options.seed = plugin::parse_number("seed", v, 0, UINT64_MAX); }}});
    GroupId id;
    std::memcpy(id.data(), params.group, id.size());
    return std::make_unique<Context>(id, params.rank, params.size, options, host);
  }
};

}  // namespace
}  // namespace tandem::loopback

extern "C" const tandem_transport* tandem_transport_query_v0_loopback(void) {
  return &tandem::plugin::TransportTable<tandem::loopback::Transport>::table;
}
