// SPDX-License-Identifier: Apache-2.0
#include "comm/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"

namespace tandem::detail {

namespace {

Status to_status(tandem_status code, const char* message, int peer) {
  if (code == TANDEM_OK) return {};
  Status status;
  status.code = static_cast<ErrorCode>(code);
  status.message = message != nullptr ? message : "";
  status.rank = peer;
  return status;
}

// Lives from post until the last of its completions.
struct PostRecord {
  Endpoint::Completion done;
  std::vector<int> peers;
  std::atomic<std::size_t> remaining{0};
};

void on_complete(void* user, std::uint64_t index, tandem_status code, const char* message) {
  auto* record = static_cast<PostRecord*>(user);
  const auto i = static_cast<std::size_t>(index);
  record->done(i, to_status(code, message, record->peers[i]));
  if (record->remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) delete record;
}

tandem_transfer written(const WireTransfer& t) {
  return {sizeof(tandem_transfer),
          t.peer,
          t.receive ? TANDEM_RECEIVE : TANDEM_SEND,
          t.data,
          t.bytes,
          t.tag,
          t.region,
          t.offset,
          t.flag};
}

// Host streams have no native handle: transports of tests, which alone serve them, know what they get.
void* native(const Stream& stream) {
  return stream.device().kind() == DeviceKind::cuda ? stream.native() : static_cast<void*>(&stream.impl());
}

}  // namespace

Endpoint::Endpoint(const tandem_transport& transport, int rank, int size, const GroupId& group,
                   const std::map<std::string, std::string>& options, int cuda_device, PeerFailed peer_failed)
    : transport_(transport), rank_(rank), size_(size), peer_failed_(std::move(peer_failed)) {
  services_ = {sizeof(tandem_host_services), this, &Endpoint::on_log, &Endpoint::on_peer_failed};
  std::vector<tandem_option> list;
  for (const auto& [key, value] : options) list.push_back({key.c_str(), value.c_str()});
  tandem_open_params params{};
  params.struct_size = sizeof(params);
  params.rank = rank;
  params.size = size;
  std::copy(group.begin(), group.end(), params.group);
  params.options = list.data();
  params.option_count = list.size();
  params.cuda_device = cuda_device;
  const tandem_status code = transport_.open(&services_, &params, &context_);
  opening_ = false;
  if (code != TANDEM_OK) {
    throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: {}", transport_.name, last_error_), rank);
  }
}

Endpoint::~Endpoint() {
  if (context_ != nullptr) transport_.close(context_);
}

std::string Endpoint::address() {
  std::string bytes(4096, '\0');
  std::uint64_t size = bytes.size();
  const tandem_status code = transport_.address(context_, bytes.data(), &size);
  if (code != TANDEM_OK) {
    throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: no address to give to peers", transport_.name),
                rank_);
  }
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

void Endpoint::connect(std::span<const std::string> addresses, Deadline deadline) {
  std::vector<const void*> data;
  std::vector<std::uint64_t> sizes;
  for (const std::string& address : addresses) {
    data.push_back(address.data());
    sizes.push_back(address.size());
  }
  if (const tandem_status code = transport_.connect(context_, data.data(), sizes.data()); code != TANDEM_OK) {
    throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: cannot start to connect", transport_.name),
                rank_);
  }
  std::vector<int> waiting;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) waiting.push_back(peer);
  }
  while (true) {
    std::erase_if(waiting, [&](int peer) {
      const tandem_status code = transport_.connect_test(context_, peer);
      if (code != TANDEM_OK && code != TANDEM_IN_PROGRESS) {
        throw Error(static_cast<ErrorCode>(code),
                    fmt::format("transport {}: cannot connect to rank {}", transport_.name, peer), peer);
      }
      return code == TANDEM_OK;
    });
    if (waiting.empty()) return;
    if (deadline.passed()) {
      throw Error(
          ErrorCode::timeout,
          fmt::format("transport {}: not connected to rank(s) {} in time", transport_.name, join_ranks(waiting)),
          waiting.front());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Endpoint::post(std::span<const WireTransfer> transfers, Completion done) {
  if (transfers.empty()) return;
  auto record = std::make_unique<PostRecord>();
  record->done = std::move(done);
  record->remaining = transfers.size();
  std::vector<tandem_transfer> list;
  list.reserve(transfers.size());
  for (const WireTransfer& t : transfers) {
    record->peers.push_back(t.peer);
    list.push_back(written(t));
  }
  tandem_post_params params{};
  params.struct_size = sizeof(params);
  params.transfers = list.data();
  params.count = list.size();
  params.on_complete = &on_complete;
  params.user = record.get();
  PostRecord* const given = record.release();  // completions may free it before post returns
  const tandem_status code = transport_.post(context_, &params);
  if (code != TANDEM_OK) {
    delete given;
    throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: transfers were not accepted", transport_.name),
                rank_);
  }
}

void Endpoint::abort(const std::string& reason) noexcept { transport_.abort(context_, reason.c_str()); }

void Endpoint::check(tandem_status code, const char* what) const {
  if (code == TANDEM_OK) return;
  throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: {}", transport_.name, what), rank_);
}

void Endpoint::post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) {
  std::vector<tandem_transfer> list;
  list.reserve(transfers.size());
  for (const WireTransfer& t : transfers) list.push_back(written(t));
  tandem_post_params params{};
  params.struct_size = sizeof(params);
  params.transfers = list.data();
  params.count = list.size();
  params.stream = native(stream);
  params.lane = use.lane;
  params.first = use.first ? 1 : 0;
  params.begin = use.begin ? 1 : 0;
  params.last = use.last ? 1 : 0;
  check(transport_.post(context_, &params), "transfers were not accepted");
}

void Endpoint::wait(const Stream& stream, int peer, std::uint32_t flag) {
  check(transport_.wait(context_, native(stream), peer, flag), "a stream cannot wait for an arrival");
}

void Endpoint::wait_sent(const Stream& stream) {
  check(transport_.wait_sent(context_, native(stream)), "a stream cannot wait for what was sent");
}

bool Endpoint::arrived(int peer, std::uint32_t flag) const noexcept {
  return transport_.arrived(context_, peer, flag) != 0;
}

bool Endpoint::sent(int peer, std::uint32_t lane) const noexcept {
  const bool tells = transport_.struct_size >= offsetof(tandem_transport, sent) + sizeof(transport_.sent) &&
                     transport_.sent != nullptr;
  return !tells || transport_.sent(context_, peer, lane) != 0;
}

Region Endpoint::allocate(std::size_t bytes) {
  void* base = nullptr;
  std::uint64_t id = 0;
  const tandem_status code = transport_.allocate(context_, bytes, &base, &id);
  if (code != TANDEM_OK) {
    throw Error(
        static_cast<ErrorCode>(code),
        fmt::format("transport {}: no {} of memory that peers can write to", transport_.name, format_bytes(bytes)),
        rank_);
  }
  std::shared_ptr<void> memory(
      base, [self = shared_from_this(), id](void*) { self->transport_.release(self->context_, id); });
  return {Buffer(std::move(memory), bytes), id};
}

std::string Endpoint::describe(std::uint64_t region) {
  std::string bytes(4096, '\0');
  std::uint64_t size = bytes.size();
  check(transport_.describe(context_, region, bytes.data(), &size), "memory cannot be described to peers");
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

void Endpoint::attach(std::uint64_t region, std::span<const std::string> blobs) {
  std::vector<const void*> data;
  std::vector<std::uint64_t> sizes;
  for (const std::string& blob : blobs) {
    data.push_back(blob.data());
    sizes.push_back(blob.size());
  }
  check(transport_.attach(context_, region, data.data(), sizes.data()), "the memory of peers cannot be reached");
}

bool is_stream_ordered(const tandem_transport& transport) noexcept {
  constexpr std::uint32_t both = TANDEM_CAP_STREAM_ORDERED | TANDEM_CAP_ONE_SIDED;
  return (transport.capabilities & both) == both;
}

void Endpoint::on_log(void* user, std::int32_t level, const char* message) {
  auto* self = static_cast<Endpoint*>(user);
  if (self->opening_.load() && level == TANDEM_LOG_ERROR) {
    const std::lock_guard lock(self->error_mutex_);
    self->last_error_ = message;  // becomes the text of the exception
    return;
  }
  const auto l = static_cast<log::Level>(std::clamp(level, std::int32_t{0}, std::int32_t{3}));
  if (log::enabled(l)) log::write(l, fmt::format("{}: {}", self->transport_.name, message));
}

void Endpoint::on_peer_failed(void* user, std::int32_t peer, const char* reason) {
  auto* self = static_cast<Endpoint*>(user);
  self->peer_failed_(peer, reason != nullptr ? reason : "");
}

}  // namespace tandem::detail
