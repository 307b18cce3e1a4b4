// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <random>

#include "transports/common/plugin.hpp"
#include "transports/loopback/group.hpp"

struct tandem_transport_context {
  tandem::plugin::Host host;
  std::shared_ptr<tandem::loopback::Group> group;
  int rank;
  int size;
  std::vector<bool> reachable;  // empty until connect
};

namespace tandem::loopback {
namespace {

using Context = tandem_transport_context;

/// What tells this process from every other, forked children included.
struct Address {
  char magic[8];
  std::uint64_t cookie;
  std::int64_t process;
};

Address own_address() {
  static const std::uint64_t cookie = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return {{'t', 'a', 'n', 'd', 'e', 'm', 'l', 'b'}, cookie, getpid()};
}

tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Context** out) {
  const plugin::Host host(services);
  return plugin::guarded(host, "loopback", [&] {
    plugin::check_open_params(*params);
    Options options;
    constexpr std::uint64_t one_minute = 60'000'000;
    plugin::parse_options(
        *params, {{"delay_us", [&](auto& v) { options.delay_us = plugin::parse_number("delay_us", v, 0, one_minute); }},
                  {"seed", [&](auto& v) { options.seed = plugin::parse_number("seed", v, 0, UINT64_MAX); }}});
    GroupId id;
    std::memcpy(id.data(), params->group, id.size());
    auto context = std::make_unique<Context>(Context{host, nullptr, params->rank, params->size, {}});
    context->group = Group::join(id, params->size, params->rank, options, host);
    *out = context.release();
    return TANDEM_OK;
  });
}

tandem_status address(Context*, void* out, std::uint64_t* bytes) {
  const auto own = own_address();
  const auto capacity = std::exchange(*bytes, sizeof(own));
  if (capacity < sizeof(own)) return plugin::status(ErrorCode::out_of_memory);
  std::memcpy(out, &own, sizeof(own));
  return TANDEM_OK;
}

tandem_status connect(Context* context, const void* const* addresses, const std::uint64_t* address_bytes) {
  return plugin::guarded(context->host, "loopback", [&] {
    const auto own = own_address();
    for (int p = 0; p < context->size; ++p) {
      const auto i = static_cast<std::size_t>(p);
      const bool same = address_bytes[i] == sizeof(own) && std::memcmp(addresses[i], &own, sizeof(own)) == 0;
      if (!same)
        context->host.log(TANDEM_LOG_ERROR, "loopback: rank {} is not in the process of rank {}", p, context->rank);
      context->reachable.push_back(same);
    }
    return TANDEM_OK;
  });
}

tandem_status connect_test(Context* context, std::int32_t peer) {
  if (context->reachable.empty()) return TANDEM_IN_PROGRESS;
  if (!context->reachable[static_cast<std::size_t>(peer)]) return plugin::status(ErrorCode::transport);
  return context->group->test_peer(peer);
}

tandem_status post(Context* context, const tandem_post_params* params) {
  return plugin::guarded(context->host, "loopback", [&] {
    context->group->post(context->rank, plugin::read_transfers(*params, context->rank, context->size),
                         params->on_complete, params->user);
    return TANDEM_OK;
  });
}

void abort(Context* context, const char* reason) {
  plugin::guarded(context->host, "loopback", [&] {
    context->group->abort(context->rank, reason ? reason : "aborted");
    return TANDEM_OK;
  });
}

void close(Context* context) {
  plugin::guarded(context->host, "loopback", [&] {
    context->group->leave(context->rank);
    return TANDEM_OK;
  });
  delete context;
}

// The struct may grow at its end: what is not named here stays zero.
constexpr tandem_transport table = [] {
  tandem_transport t{};
  t.struct_size = sizeof(tandem_transport);
  t.abi = TANDEM_TRANSPORT_ABI;
  t.capabilities = 0;
  t.name = "loopback";
  t.description = "ranks that are threads of one process; with delays and gates, for tests";
  t.option_help =
      "delay_us: each transfer waits a random time up to this many microseconds before it moves (0)\n"
      "seed: of the delays; the same seed gives the same delays (0)\n";
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
}  // namespace tandem::loopback

extern "C" const tandem_transport* tandem_transport_query_v0_loopback(void) { return &tandem::loopback::table; }
