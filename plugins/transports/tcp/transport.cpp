// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/env.hpp"
#include "transports/common/table.hpp"
#include "transports/tcp/context.hpp"

namespace tandem::tcp {
namespace {

struct Transport {
  using Context = tcp::Context;
  static constexpr std::uint32_t capabilities = 0;
  static constexpr const char* name = "tcp";
  static constexpr const char* description = "TCP over IPv4 or IPv6 between hosts, Unix sockets within one";
  static constexpr const char* option_help =
      "interface: name or address of the network interface to listen on and to advertise (TANDEM_INTERFACE, or all)\n"
      "unix_sockets: 1 connects processes of one host by Unix sockets, 0 by loopback like those of others (1)\n"
      "segment_bytes: longest piece of a transfer that nothing else is sent in between (1048576)\n"
      "repeat: how often every byte travels, for measurements that play a slower link; equal on all ranks (1)\n"
      "socket_buffer_bytes: of each socket, both ways; 0 leaves it to the system (0)\n";

  static std::unique_ptr<Context> open(const tandem_open_params& params, const plugin::Host& host) {
    constexpr std::uint64_t kib = 1024, gib = kib * kib * kib;
    Options options;
    options.interface = Env::read().interface.value_or("");
    Membership self;
    std::memcpy(self.group.data(), params.group, self.group.size());
    self.rank = params.rank;
    self.size = params.size;
    plugin::parse_options(
        params,
        {{"interface", [&](auto& v) { options.interface = v; }},
         {"segment_bytes",
          [&](auto& v) { options.segment_bytes = plugin::parse_number("segment_bytes", v, kib, gib); }},
         {"repeat", [&](auto& v) { options.repeat = plugin::parse_number("repeat", v, 1, 1000); }},
         {"unix_sockets", [&](auto& v) { options.unix_sockets = plugin::parse_number("unix_sockets", v, 0, 1) == 1; }},
         {"socket_buffer_bytes",
          [&](auto& v) { self.socket_buffer_bytes = plugin::parse_number("socket_buffer_bytes", v, 0, gib); }}});
    return std::make_unique<Context>(self, options, host);
  }
};

}  // namespace
}  // namespace tandem::tcp

extern "C" const tandem_transport* tandem_transport_query_v0_tcp(void) {
  return &tandem::plugin::TransportTable<tandem::tcp::Transport>::table;
}
