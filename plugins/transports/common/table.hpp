// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/common/plugin.hpp"

namespace tandem::plugin {

/// The C table of a transport that is written in C++: reads and checks what the host gives, and lets no exception out.
/// `Transport` says what is its own:
///
///   name, description, option_help       const char*
///   capabilities                         std::uint32_t
///   flags, lanes                         std::uint32_t, if stream-ordered: the limits
///   Context                              one rank of one group, see below
///   std::unique_ptr<Context> open(const tandem_open_params&, const Host&)     rank and size are checked
///   std::string why_unavailable()        if it likes: see tandem_transport::unavailable; "" if it can be used
///
/// Its Context has host(), rank(), size(), address() -> std::string, connect(std::vector<std::string_view>),
/// connect_test(peer) -> tandem_status, abort(reason), if it likes connect_error(peer) -> std::string, and ends with
/// its destructor. A host-driven one has
///
///   post(transfers, on_complete, user)
///
/// a stream-ordered one, whose type Stream is what a stream is there,
///
///   post(transfers, Stream, LaneUse), wait(Stream, peer, flag), wait_sent(Stream), arrived(peer, flag) -> bool,
///   and if it likes sent(peer, lane) -> bool, flush(Stream, lane)
///
/// and a one-sided one
///
///   allocate(bytes, &region) -> void*, describe(region) -> std::string, attach(region, views), release(region).
template <class Transport>
class TransportTable {
  using Context = typename Transport::Context;
  using Handle = tandem_transport_context;  // never defined: it is a Context

  static constexpr bool has(std::uint32_t capability) { return (Transport::capabilities & capability) != 0; }
  static Context& of(Handle* handle) { return *reinterpret_cast<Context*>(handle); }

  template <class Body>
  static tandem_status guarded(Context& context, Body&& body) {
    return plugin::guarded(context.host(), Transport::name, [&] {
      body();
      return tandem_status{TANDEM_OK};
    });
  }

  /// What each rank gave, as views into the host's memory.
  static std::vector<std::string_view> views(const Context& context, const void* const* blobs,
                                             const std::uint64_t* sizes) {
    std::vector<std::string_view> list;
    for (std::size_t p = 0; p < static_cast<std::size_t>(context.size()); ++p)
      list.emplace_back(static_cast<const char*>(blobs[p]), sizes[p]);
    return list;
  }

  /// Writes a blob where the host wants it; *bytes is its room, and then the size. `make` may throw.
  template <class Make>
  static tandem_status put(Context& context, void* out, std::uint64_t* bytes, Make&& make) {
    return plugin::guarded(context.host(), Transport::name, [&] {
      const std::string blob = make();
      const auto capacity = std::exchange(*bytes, blob.size());
      if (capacity < blob.size()) return status(ErrorCode::out_of_memory);
      std::memcpy(out, blob.data(), blob.size());
      return tandem_status{TANDEM_OK};
    });
  }

  static tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Handle** out) {
    const Host host(services);
    return plugin::guarded(host, Transport::name, [&] {
      check_open_params(*params);
      *out = reinterpret_cast<Handle*>(Transport::open(*params, host).release());
      return tandem_status{TANDEM_OK};
    });
  }

  static const char* unavailable() {
    thread_local std::string reason;
    reason = Transport::why_unavailable();
    return reason.empty() ? nullptr : reason.c_str();
  }

  static tandem_status address(Handle* handle, void* out, std::uint64_t* bytes) {
    return put(of(handle), out, bytes, [&] { return of(handle).address(); });
  }

  static tandem_status connect(Handle* handle, const void* const* addresses, const std::uint64_t* sizes) {
    return guarded(of(handle), [&] { of(handle).connect(views(of(handle), addresses, sizes)); });
  }

  static tandem_status connect_test(Handle* handle, std::int32_t peer) {
    return plugin::guarded(of(handle).host(), Transport::name, [&] { return of(handle).connect_test(peer); });
  }

  static tandem_status connect_error(Handle* handle, std::int32_t peer, void* out, std::uint64_t* bytes) {
    return put(of(handle), out, bytes, [&] { return of(handle).connect_error(peer); });
  }

  static tandem_status post(Handle* handle, const tandem_post_params* params) {
    Context& context = of(handle);
    return guarded(context, [&] {
      if constexpr (has(TANDEM_CAP_STREAM_ORDERED)) {
        const auto transfers =
            read_stream_transfers(*params, context.rank(), context.size(), Transport::flags, has(TANDEM_CAP_ONE_SIDED));
        context.post(transfers, stream_of(params->stream), lane_use(*params, transfers));
      } else {
        context.post(read_transfers(*params, context.rank(), context.size()), params->on_complete, params->user);
      }
    });
  }

  static LaneUse lane_use(const tandem_post_params& params, const std::vector<tandem_transfer>& transfers) {
    if (params.lane >= Transport::lanes) throw std::invalid_argument(fmt::format("there is no lane {}", params.lane));
    const bool receives = std::any_of(transfers.begin(), transfers.end(),
                                      [](const tandem_transfer& t) { return t.direction == TANDEM_RECEIVE; });
    if (receives && params.begin == 0) throw std::invalid_argument("receives are posted when an operation begins");
    return {params.lane, params.begin != 0, params.first != 0, params.last != 0};
  }

  static void abort(Handle* handle, const char* reason) {
    guarded(of(handle), [&] { of(handle).abort(reason ? reason : "aborted"); });
  }

  static void close(Handle* handle) { delete &of(handle); }

  static auto stream_of(void* stream) { return static_cast<typename Context::Stream>(stream); }

  static tandem_status wait(Handle* handle, void* stream, std::int32_t peer, std::uint32_t flag) {
    return guarded(of(handle), [&] { of(handle).wait(stream_of(stream), peer, flag); });
  }

  static tandem_status wait_sent(Handle* handle, void* stream) {
    return guarded(of(handle), [&] { of(handle).wait_sent(stream_of(stream)); });
  }

  static std::int32_t arrived(Handle* handle, std::int32_t peer, std::uint32_t flag) {
    return of(handle).arrived(peer, flag) ? 1 : 0;
  }

  static std::int32_t sent(Handle* handle, std::int32_t peer, std::uint32_t lane) {
    return of(handle).sent(peer, lane) ? 1 : 0;
  }

  static tandem_status flush(Handle* handle, void* stream, std::uint32_t lane) {
    return guarded(of(handle), [&] { of(handle).flush(stream_of(stream), lane); });
  }

  static tandem_status allocate(Handle* handle, std::uint64_t bytes, void** base, std::uint64_t* region) {
    return guarded(of(handle), [&] { *base = of(handle).allocate(bytes, region); });
  }

  static tandem_status describe(Handle* handle, std::uint64_t region, void* out, std::uint64_t* bytes) {
    return put(of(handle), out, bytes, [&] { return of(handle).describe(region); });
  }

  static tandem_status attach(Handle* handle, std::uint64_t region, const void* const* blobs,
                              const std::uint64_t* sizes) {
    return guarded(of(handle), [&] { of(handle).attach(region, views(of(handle), blobs, sizes)); });
  }

  static void release(Handle* handle, std::uint64_t region) {
    guarded(of(handle), [&] { of(handle).release(region); });
  }

  /// The struct may grow at its end: what is not named here stays zero.
  static constexpr tandem_transport make() {
    tandem_transport t{};
    t.struct_size = sizeof(tandem_transport);
    t.abi = TANDEM_TRANSPORT_ABI;
    t.capabilities = Transport::capabilities;
    t.name = Transport::name;
    t.description = Transport::description;
    t.option_help = Transport::option_help;
    t.max_message = UINT64_MAX;
    t.open = open;
    t.address = address;
    t.connect = connect;
    t.connect_test = connect_test;
    t.post = post;
    t.abort = abort;
    t.close = close;
    if constexpr (requires(Context & c) { c.connect_error(0); }) t.connect_error = connect_error;
    if constexpr (requires { Transport::why_unavailable(); }) t.unavailable = unavailable;
    if constexpr (has(TANDEM_CAP_STREAM_ORDERED)) {
      t.wait = wait;
      t.wait_sent = wait_sent;
      t.arrived = arrived;
      t.flag_limit = Transport::flags;
      t.lane_limit = Transport::lanes;
      if constexpr (requires(Context & c) { c.sent(0, 0U); }) t.sent = sent;
      if constexpr (requires(Context & c, typename Context::Stream s) { c.flush(s, 0U); }) t.flush = flush;
    }
    if constexpr (has(TANDEM_CAP_ONE_SIDED)) {
      t.allocate = allocate;
      t.describe = describe;
      t.attach = attach;
      t.release = release;
    }
    return t;
  }

 public:
  static constexpr tandem_transport table = make();
};

}  // namespace tandem::plugin
