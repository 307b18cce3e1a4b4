// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/common/plugin.hpp"
#include "transports/cuda_p2p/context.hpp"

struct tandem_transport_context : tandem::cuda_p2p::Context {
  using Context::Context;
};

namespace tandem::cuda_p2p {
namespace {

using Handle = tandem_transport_context;

std::vector<std::string_view> views(const Handle& context, const void* const* blobs, const std::uint64_t* sizes) {
  std::vector<std::string_view> list;
  for (std::size_t p = 0; p < static_cast<std::size_t>(context.size()); ++p)
    list.emplace_back(static_cast<const char*>(blobs[p]), sizes[p]);
  return list;
}

tandem_status put(const std::string& blob, void* out, std::uint64_t* bytes) {
  const auto capacity = std::exchange(*bytes, blob.size());
  if (capacity < blob.size()) return plugin::status(ErrorCode::out_of_memory);
  std::memcpy(out, blob.data(), blob.size());
  return TANDEM_OK;
}

tandem_status open(const tandem_host_services* services, const tandem_open_params* params, Handle** out) {
  const plugin::Host host(services);
  return plugin::guarded(host, "cuda_p2p", [&] {
    plugin::check_open_params(*params);
    if (params->struct_size < sizeof(tandem_open_params) || params->cuda_device < 0)
      throw std::invalid_argument("it moves GPU memory, and this rank has no GPU");
    Membership self;
    plugin::parse_options(
        *params,
        {{"repeat", [&](auto& v) { self.repeat = static_cast<int>(plugin::parse_number("repeat", v, 1, 1000)); }}});
    std::memcpy(self.group.data(), params->group, self.group.size());
    self.rank = params->rank;
    self.size = params->size;
    self.device = params->cuda_device;
    *out = new Handle(self, host);
    return tandem_status{TANDEM_OK};
  });
}

tandem_status address(Handle* context, void* out, std::uint64_t* bytes) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] { return put(context->address(), out, bytes); });
}

tandem_status connect(Handle* context, const void* const* addresses, const std::uint64_t* address_bytes) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->connect(views(*context, addresses, address_bytes));
    return tandem_status{TANDEM_OK};
  });
}

tandem_status connect_test(Handle* context, std::int32_t peer) { return context->connect_test(peer); }

tandem_status connect_error(Handle* context, std::int32_t peer, void* out, std::uint64_t* bytes) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] { return put(context->connect_error(peer), out, bytes); });
}

tandem_status post(Handle* context, const tandem_post_params* params) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    const auto transfers = plugin::read_stream_transfers(*params, context->rank(), context->size(), Board::flags, true);
    if (params->lane >= Board::lanes) throw std::invalid_argument(fmt::format("there is no lane {}", params->lane));
    const LaneUse use{params->lane, params->begin != 0, params->first != 0, params->last != 0};
    if (!use.begin && std::any_of(transfers.begin(), transfers.end(),
                                  [](const tandem_transfer& t) { return t.direction == TANDEM_RECEIVE; }))
      throw std::invalid_argument("receives are posted when an operation begins");
    context->post(transfers, static_cast<cudaStream_t>(params->stream), use);
    return tandem_status{TANDEM_OK};
  });
}

void abort(Handle* context, const char* reason) {
  plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->abort(reason ? reason : "aborted");
    return tandem_status{TANDEM_OK};
  });
}

void close(Handle* context) { delete context; }

tandem_status wait(Handle* context, void* stream, std::int32_t peer, std::uint32_t flag) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->wait(static_cast<cudaStream_t>(stream), peer, flag);
    return tandem_status{TANDEM_OK};
  });
}

tandem_status wait_sent(Handle* context, void* stream) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->wait_sent(static_cast<cudaStream_t>(stream));
    return tandem_status{TANDEM_OK};
  });
}

std::int32_t arrived(Handle* context, std::int32_t peer, std::uint32_t flag) {
  return context->arrived(peer, flag) ? 1 : 0;
}

std::int32_t sent(Handle* context, std::int32_t peer, std::uint32_t lane) { return context->sent(peer, lane) ? 1 : 0; }

tandem_status allocate(Handle* context, std::uint64_t bytes, void** base, std::uint64_t* region) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    *base = context->allocate(bytes, region);
    return tandem_status{TANDEM_OK};
  });
}

tandem_status describe(Handle* context, std::uint64_t region, void* out, std::uint64_t* bytes) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] { return put(context->describe(region), out, bytes); });
}

tandem_status attach(Handle* context, std::uint64_t region, const void* const* blobs, const std::uint64_t* sizes) {
  return plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->attach(region, views(*context, blobs, sizes));
    return tandem_status{TANDEM_OK};
  });
}

void release(Handle* context, std::uint64_t region) {
  plugin::guarded(context->host(), "cuda_p2p", [&] {
    context->release(region);
    return tandem_status{TANDEM_OK};
  });
}

constexpr tandem_transport table{
    .struct_size = sizeof(tandem_transport),
    .abi = TANDEM_TRANSPORT_ABI,
    .capabilities = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_ZERO_SM | TANDEM_CAP_DEVICE_MEMORY |
                    TANDEM_CAP_GRAPH_CAPTURE | TANDEM_CAP_ONE_SIDED,
    .name = "cuda_p2p",
    .description = "GPUs of one host: copy engines push into memory of the peer, no multiprocessor is used",
    .option_help = "repeat: how often every byte is pushed, for measurements that play a slower link (1)\n",
    .max_message = UINT64_MAX,
    .open = open,
    .address = address,
    .connect = connect,
    .connect_test = connect_test,
    .post = post,
    .progress = nullptr,
    .abort = abort,
    .close = close,
    .wait = wait,
    .wait_sent = wait_sent,
    .arrived = arrived,
    .allocate = allocate,
    .describe = describe,
    .attach = attach,
    .release = release,
    .flag_limit = Board::flags,
    .lane_limit = Board::lanes,
    .sent = sent,
    .flush = nullptr,
    .connect_error = connect_error,
};

}  // namespace
}  // namespace tandem::cuda_p2p

extern "C" const tandem_transport* tandem_transport_query_v0_cuda_p2p(void) { return &tandem::cuda_p2p::table; }
