// SPDX-License-Identifier: Apache-2.0
#include "support/grouped_transport.hpp"

#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "comm/plugin_host.hpp"
#include "support/grouped_world.hpp"
#include "support/stream_world.hpp"
#include "transports/common/plugin.hpp"

using tandem::testing::GroupedWorld;

struct tandem_transport_context {
  tandem::plugin::Host host;
  std::shared_ptr<GroupedWorld> world;
  int rank;
  std::set<std::uint64_t> refused = {};  // ranks that it does not reach
};

namespace tandem::testing {

namespace {

using Context = tandem_transport_context;

template <class Body>
tandem_status guarded(const Context* context, Body&& body) {
  return plugin::guarded(context->host, "grouped", [&] {
    body();
    return tandem_status{TANDEM_OK};
  });
}

detail::StreamImpl& stream_of(void* stream) { return *static_cast<detail::StreamImpl*>(stream); }

tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Context** out) {
  const plugin::Host host(services);
  return plugin::guarded(host, "grouped", [&] {
    plugin::check_open_params(*params);
    std::uint64_t delay_us = 0;
    std::uint64_t seed = 0;
    std::set<std::uint64_t> refused;
    plugin::parse_options(*params,
                          {{"delay_us", [&](auto& v) { delay_us = plugin::parse_number("delay_us", v, 0, 1000000); }},
                           {"seed", [&](auto& v) { seed = plugin::parse_number("seed", v, 0, UINT64_MAX); }},
                           {"refuse", [&](auto& v) { refused = refused_peers(v); }}});
    GroupedWorld::Group group{};
    std::memcpy(group.data(), params->group, group.size());
    *out =
        new Context{host, GroupedWorld::join(group, params->rank, params->size, delay_us, seed), params->rank, refused};
    return tandem_status{TANDEM_OK};
  });
}

tandem_status address(Context*, void*, std::uint64_t* bytes) {
  *bytes = 0;
  return TANDEM_OK;
}

tandem_status connect(Context*, const void* const*, const std::uint64_t*) { return TANDEM_OK; }

tandem_status connect_test(Context* c, std::int32_t peer) {
  if (c->refused.contains(static_cast<std::uint64_t>(peer))) return plugin::status(ErrorCode::unsupported);
  return c->world->is_open(peer) ? TANDEM_OK : TANDEM_IN_PROGRESS;
}

tandem_status connect_error(Context*, std::int32_t peer, void* out, std::uint64_t* bytes) {
  const std::string text = "there is no wire to rank " + std::to_string(peer);
  *bytes = text.size();
  std::memcpy(out, text.data(), text.size());
  return TANDEM_OK;
}

tandem_status post(Context* c, const tandem_post_params* params) {
  return guarded(c, [&] { c->world->post(c->rank, *params); });
}

tandem_status flush(Context* c, void* stream, std::uint32_t lane) {
  return guarded(c, [&] { c->world->flush(c->rank, stream_of(stream), lane); });
}

void abort(Context* c, const char*) { c->world->abort(c->rank); }

void close(Context* c) {
  c->world->abort(c->rank);
  delete c;
}

tandem_status wait(Context* c, void* stream, std::int32_t peer, std::uint32_t flag) {
  return guarded(c, [&] { c->world->wait(c->rank, stream_of(stream), peer, flag); });
}

tandem_status wait_sent(Context* c, void* stream) {
  return guarded(c, [&] { c->world->wait_sent(c->rank, stream_of(stream)); });
}

std::int32_t arrived(Context* c, std::int32_t peer, std::uint32_t flag) {
  return c->world->arrived(c->rank, peer, flag) ? 1 : 0;
}

std::int32_t sent(Context* c, std::int32_t peer, std::uint32_t lane) {
  return c->world->sent(c->rank, peer, lane) ? 1 : 0;
}

const tandem_transport& transport() {
  static const tandem_transport t = [] {
    tandem_transport out{};
    out.struct_size = sizeof(out);
    out.abi = TANDEM_TRANSPORT_ABI;
    out.capabilities = TANDEM_CAP_STREAM_ORDERED;
    out.name = "grouped";
    out.description = "ranks of one process over streams of host devices in groups, for tests";
    out.option_help = "";
    out.max_message = UINT64_MAX;
    out.open = open;
    out.address = address;
    out.connect = connect;
    out.connect_test = connect_test;
    out.post = post;
    out.abort = abort;
    out.close = close;
    out.wait = wait;
    out.wait_sent = wait_sent;
    out.arrived = arrived;
    out.flag_limit = 6144;
    out.lane_limit = 6;
    out.sent = sent;
    out.connect_error = connect_error;
    out.flush = flush;
    return out;
  }();
  return t;
}

}  // namespace

void register_grouped_transport() {
  static const bool once = [] {
    detail::add_transport(transport());
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace tandem::testing
