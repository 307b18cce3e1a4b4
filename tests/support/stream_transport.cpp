// SPDX-License-Identifier: Apache-2.0
#include "support/stream_transport.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "comm/plugin_host.hpp"
#include "support/stream_world.hpp"
#include "transports/common/plugin.hpp"

using tandem::testing::StreamWorld;

struct tandem_transport_context {
  tandem::plugin::Host host;
  std::shared_ptr<StreamWorld> world;
  int rank;
  std::set<std::uint64_t> refused = {};  // ranks that it does not reach
};

namespace tandem::testing {

namespace {

using Context = tandem_transport_context;

struct Violations {
  std::mutex mutex;
  std::vector<std::string> list;
};
Violations& violations() {
  static Violations all;
  return all;
}

struct Gates {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<bool(const StreamDelivery&)> matches;
  std::uint64_t held = 0;
};
Gates& gates() {
  static Gates all;
  return all;
}

template <class Body>
tandem_status guarded(Context* context, Body&& body) {
  return plugin::guarded(context->host, "stream", [&] {
    body();
    return tandem_status{TANDEM_OK};
  });
}

tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Context** out) {
  const plugin::Host host(services);
  return plugin::guarded(host, "stream", [&] {
    plugin::check_open_params(*params);
    if (params->cuda_device != -1) throw std::invalid_argument("ranks on a GPU");
    std::uint64_t delay_us = 0;
    std::uint64_t seed = 0;
    std::set<std::uint64_t> refused;
    plugin::parse_options(*params,
                          {{"delay_us", [&](auto& v) { delay_us = plugin::parse_number("delay_us", v, 0, 1000000); }},
                           {"seed", [&](auto& v) { seed = plugin::parse_number("seed", v, 0, UINT64_MAX); }},
                           {"refuse", [&](auto& v) { refused = refused_peers(v); }}});
    StreamWorld::Group group{};
    std::memcpy(group.data(), params->group, group.size());
    auto context = std::make_unique<Context>(
        Context{host, StreamWorld::join(group, params->rank, params->size, delay_us, seed), params->rank, refused});
    *out = context.release();
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

void abort(Context* c, const char*) { c->world->abort(c->rank); }

void close(Context* c) {
  c->world->abort(c->rank);
  delete c;
}

tandem_status wait(Context* c, void* stream, std::int32_t peer, std::uint32_t flag) {
  return guarded(c, [&] { c->world->wait(c->rank, *static_cast<detail::StreamImpl*>(stream), peer, flag); });
}

tandem_status wait_sent(Context* c, void* stream) {
  return guarded(c, [&] { c->world->wait_sent(c->rank, *static_cast<detail::StreamImpl*>(stream)); });
}

std::int32_t arrived(Context* c, std::int32_t peer, std::uint32_t flag) {
  return c->world->arrived(c->rank, peer, flag) ? 1 : 0;
}

std::int32_t sent(Context* c, std::int32_t peer, std::uint32_t lane) {
  return c->world->sent(c->rank, peer, lane) ? 1 : 0;
}

tandem_status allocate(Context* c, std::uint64_t bytes, void** base, std::uint64_t* region) {
  return guarded(c, [&] { *region = c->world->allocate(c->rank, bytes, base); });
}

tandem_status describe(Context*, std::uint64_t region, void* out, std::uint64_t* bytes) {
  std::memcpy(out, &region, sizeof(region));
  *bytes = sizeof(region);
  return TANDEM_OK;
}

tandem_status attach(Context*, std::uint64_t region, const void* const* blobs, const std::uint64_t* bytes) {
  // All ranks must have come to the same number.
  return *bytes == sizeof(region) && std::memcmp(blobs[0], &region, sizeof(region)) == 0
             ? TANDEM_OK
             : plugin::status(ErrorCode::internal);
}

void release(Context* c, std::uint64_t region) { c->world->release(c->rank, region); }

const tandem_transport& transport() {
  static const tandem_transport t = [] {
    tandem_transport out{};
    out.struct_size = sizeof(out);
    out.abi = TANDEM_TRANSPORT_ABI;
    out.capabilities = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_ONE_SIDED;
    out.name = "stream";
    out.description = "ranks of one process over streams of host devices, for tests";
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
    out.allocate = allocate;
    out.describe = describe;
    out.attach = attach;
    out.release = release;
    out.flag_limit = 6144;
    out.lane_limit = 6;
    out.sent = sent;
    out.connect_error = connect_error;
    return out;
  }();
  return t;
}

}  // namespace

void register_stream_transport() {
  static const bool once = [] {
    detail::add_transport(transport());
    return true;
  }();
  static_cast<void>(once);
}

std::set<std::uint64_t> refused_peers(const std::string& list) {
  std::set<std::uint64_t> peers;
  std::istringstream stream(list);
  for (std::string peer; std::getline(stream, peer, '+');)
    peers.insert(plugin::parse_number("refuse", peer, 0, INT32_MAX));
  return peers;
}

void report_violation(const std::string& what) {
  const std::lock_guard lock(violations().mutex);
  violations().list.push_back(what);
}

std::vector<std::string> take_stream_violations() {
  const std::lock_guard lock(violations().mutex);
  return std::exchange(violations().list, {});
}

void pass_gate(const StreamDelivery& delivery, const std::function<bool()>& given_up) {
  Gates& g = gates();
  std::unique_lock lock(g.mutex);
  if (!g.matches || !g.matches(delivery)) return;
  ++g.held;
  g.changed.notify_all();
  while (g.matches) {
    lock.unlock();
    if (given_up()) return;
    lock.lock();
    g.changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

StreamGate::StreamGate(std::function<bool(const StreamDelivery&)> matches) {
  const std::lock_guard lock(gates().mutex);
  gates().matches = std::move(matches);
  gates().held = 0;
}

StreamGate::~StreamGate() { release(); }

void StreamGate::release() {
  {
    const std::lock_guard lock(gates().mutex);
    gates().matches = nullptr;
  }
  gates().changed.notify_all();
}

bool StreamGate::wait_held(std::uint64_t count, Deadline deadline) const {
  std::unique_lock lock(gates().mutex);
  return gates().changed.wait_until(lock, deadline.time(), [&] { return gates().held >= count; });
}

}  // namespace tandem::testing
