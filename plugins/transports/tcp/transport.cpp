// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/env.hpp"
#include "transports/common/plugin.hpp"
#include "transports/tcp/context.hpp"

struct tandem_transport_context : tandem::tcp::Context {
  using Context::Context;
};

namespace tandem::tcp {
namespace {

using Handle = tandem_transport_context;

tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Handle** out) {
  const plugin::Host host(services);
  return plugin::guarded(host, "tcp", [&] {
    plugin::check_open_params(*params);
    constexpr std::uint64_t kib = 1024, gib = kib * kib * kib;
    Options options;
    options.interface = Env::read().interface.value_or("");
    Membership self;
    std::memcpy(self.group.data(), params->group, self.group.size());
    self.rank = params->rank;
    self.size = params->size;
    plugin::parse_options(
        *params,
        {{"interface", [&](auto& v) { options.interface = v; }},
         {"segment_bytes",
          [&](auto& v) { options.segment_bytes = plugin::parse_number("segment_bytes", v, kib, gib); }},
         {"repeat", [&](auto& v) { options.repeat = plugin::parse_number("repeat", v, 1, 1000); }},
         {"unix_sockets", [&](auto& v) { options.unix_sockets = plugin::parse_number("unix_sockets", v, 0, 1) == 1; }},
         {"socket_buffer_bytes",
          [&](auto& v) { self.socket_buffer_bytes = plugin::parse_number("socket_buffer_bytes", v, 0, gib); }}});
    *out = new Handle(self, options, host);
    return TANDEM_OK;
  });
}

tandem_status address(Handle* context, void* out, std::uint64_t* bytes) {
  return plugin::guarded(context->host(), "tcp", [&] {
    const auto blob = context->address();
    const auto capacity = std::exchange(*bytes, blob.size());
    if (capacity < blob.size()) return plugin::status(ErrorCode::out_of_memory);
    std::memcpy(out, blob.data(), blob.size());
    return tandem_status{TANDEM_OK};
  });
}

tandem_status connect(Handle* context, const void* const* addresses, const std::uint64_t* address_bytes) {
  return plugin::guarded(context->host(), "tcp", [&] {
    std::vector<std::string_view> blobs;
    for (std::size_t p = 0; p < static_cast<std::size_t>(context->size()); ++p)
      blobs.emplace_back(static_cast<const char*>(addresses[p]), address_bytes[p]);
    context->connect(blobs);
    return TANDEM_OK;
  });
}

tandem_status connect_test(Handle* context, std::int32_t peer) { return context->connect_test(peer); }

tandem_status post(Handle* context, const tandem_post_params* params) {
  return plugin::guarded(context->host(), "tcp", [&] {
    context->post(plugin::read_transfers(*params, context->rank(), context->size()), params->on_complete, params->user);
    return TANDEM_OK;
  });
}

void abort(Handle* context, const char* reason) {
  plugin::guarded(context->host(), "tcp", [&] {
    context->abort(ErrorCode::aborted, reason ? reason : "aborted");
    return TANDEM_OK;
  });
}

void close(Handle* context) { delete context; }

// The struct may grow at its end: what is not named here stays zero.
constexpr tandem_transport table = [] {
  tandem_transport t{};
  t.struct_size = sizeof(tandem_transport);
  t.abi = TANDEM_TRANSPORT_ABI;
  t.capabilities = 0;
  t.name = "tcp";
  t.description = "TCP over IPv4 or IPv6 between hosts, Unix sockets within one";
  t.option_help =
      "interface: name or address of the network interface to listen on and to advertise (TANDEM_INTERFACE, or all)\n"
      "unix_sockets: 1 connects processes of one host by Unix sockets, 0 by loopback like those of others (1)\n"
      "segment_bytes: longest piece of a transfer that nothing else is sent in between (1048576)\n"
      "repeat: how often every byte travels, for measurements that play a slower link; equal on all ranks (1)\n"
      "socket_buffer_bytes: of each socket, both ways; 0 leaves it to the system (0)\n";
  t.max_message = UINT64_MAX;
  t.open = open;
  t.address = address;
  t.connect = connect;
  t.connect_test = connect_test;
  t.post = post;
  t.progress = nullptr;
  t.abort = abort;
  t.close = close;
  return t;
}();

}  // namespace
}  // namespace tandem::tcp

extern "C" const tandem_transport* tandem_transport_query_v0_tcp(void) { return &tandem::tcp::table; }
