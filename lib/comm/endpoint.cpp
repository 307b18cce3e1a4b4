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
          t.flag,
          t.round};
}

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::unsupported, fmt::format("this transport knows no {}", what));
}

// Host streams have no native handle: transports of tests, which alone serve them, know what they get.
void* native(const Stream& stream) {
  return stream.device().kind() == DeviceKind::cuda ? stream.native() : static_cast<void*>(&stream.impl());
}

}  // namespace

std::string Endpoint::address() { refuse("address"); }
void Endpoint::connect(std::span<const std::string>, Deadline) { refuse("connections"); }
std::vector<std::string> Endpoint::try_connect(std::span<const std::string>, Deadline) { refuse("connections"); }
void Endpoint::post(std::span<const WireTransfer>, Completion) { refuse("transfers without a stream"); }
void Endpoint::post(const Stream&, std::span<const WireTransfer>, const LaneUse&) { refuse("transfers on streams"); }
void Endpoint::flush(const Stream&, std::uint32_t) {}
void Endpoint::wait(const Stream&, int, std::uint32_t) { refuse("streams that wait"); }
void Endpoint::wait_sent(const Stream&) { refuse("streams that wait"); }
bool Endpoint::arrived(int, std::uint32_t) const noexcept { return false; }
bool Endpoint::sent(int, std::uint32_t) const noexcept { return true; }
bool Endpoint::places_on_wait(int) const noexcept { return false; }
void Endpoint::reserve(std::uint32_t, std::size_t, std::size_t) {}
Region Endpoint::allocate(std::size_t) { refuse("memory that peers write to"); }
std::string Endpoint::describe(std::uint64_t) { refuse("memory that peers write to"); }
void Endpoint::attach(std::uint64_t, std::span<const std::string>) { refuse("memory that peers write to"); }

PluginEndpoint::PluginEndpoint(const tandem_transport& transport, int rank, int size, const GroupId& group,
                               const std::map<std::string, std::string>& options, int cuda_device,
                               PeerFailed peer_failed)
    : transport_(transport), rank_(rank), size_(size), peer_failed_(std::move(peer_failed)) {
  services_ = {sizeof(tandem_host_services), this, &PluginEndpoint::on_log, &PluginEndpoint::on_peer_failed};
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

PluginEndpoint::~PluginEndpoint() {
  if (context_ != nullptr) transport_.close(context_);
}

Traits PluginEndpoint::traits() const noexcept {
  const auto can = [&](std::uint32_t bit) { return (transport_.capabilities & bit) != 0; };
  if (!can(TANDEM_CAP_STREAM_ORDERED)) return {};
  return {true, can(TANDEM_CAP_ONE_SIDED), can(TANDEM_CAP_GRAPH_CAPTURE), transport_.flag_limit, transport_.lane_limit};
}

std::string PluginEndpoint::name(int) const { return transport_.name; }

std::string PluginEndpoint::address() {
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

tandem_status PluginEndpoint::start_to_connect(std::span<const std::string> addresses) {
  std::vector<const void*> data;
  std::vector<std::uint64_t> sizes;
  for (const std::string& address : addresses) {
    data.push_back(address.data());
    sizes.push_back(address.size());
  }
  return transport_.connect(context_, data.data(), sizes.data());
}

std::string PluginEndpoint::connect_error(int peer) const {
  const bool tells =
      transport_.struct_size >= offsetof(tandem_transport, connect_error) + sizeof(transport_.connect_error) &&
      transport_.connect_error != nullptr;
  std::string text(4096, '\0');
  std::uint64_t size = text.size();
  if (!tells || transport_.connect_error(context_, peer, text.data(), &size) != TANDEM_OK)
    return "it cannot be connected to";
  text.resize(static_cast<std::size_t>(size));
  return text;
}

void PluginEndpoint::connect(std::span<const std::string> addresses, Deadline deadline) {
  if (const tandem_status code = start_to_connect(addresses); code != TANDEM_OK) {
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
        throw Error(
            static_cast<ErrorCode>(code),
            fmt::format("transport {}: cannot connect to rank {}: {}", transport_.name, peer, connect_error(peer)),
            peer);
      }
      return code == TANDEM_OK;
    });
    if (waiting.empty()) return;
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  fmt::format("transport {}: not connected to {} in time", transport_.name, name_ranks(waiting)),
                  waiting.front());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<std::string> PluginEndpoint::try_connect(std::span<const std::string> addresses, Deadline deadline) {
  std::vector<std::string> failures(static_cast<std::size_t>(size_));
  const tandem_status started = start_to_connect(addresses);
  for (int peer = 0; peer < size_; ++peer) {
    std::string& failure = failures[static_cast<std::size_t>(peer)];
    if (peer == rank_) continue;
    if (started != TANDEM_OK) {
      failure = connect_error(peer);
      continue;
    }
    tandem_status code = transport_.connect_test(context_, peer);
    while (code == TANDEM_IN_PROGRESS && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      code = transport_.connect_test(context_, peer);
    }
    if (code == TANDEM_IN_PROGRESS) failure = "not connected in time";
    if (code != TANDEM_OK && code != TANDEM_IN_PROGRESS) failure = connect_error(peer);
  }
  return failures;
}

void PluginEndpoint::post(std::span<const WireTransfer> transfers, Completion done) {
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

void PluginEndpoint::abort(const std::string& reason) noexcept { transport_.abort(context_, reason.c_str()); }

void PluginEndpoint::check(tandem_status code, const char* what) const {
  if (code == TANDEM_OK) return;
  throw Error(static_cast<ErrorCode>(code), fmt::format("transport {}: {}", transport_.name, what), rank_);
}

void PluginEndpoint::post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) {
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

void PluginEndpoint::flush(const Stream& stream, std::uint32_t lane) {
  const bool holds_back = transport_.struct_size >= offsetof(tandem_transport, flush) + sizeof(transport_.flush) &&
                          transport_.flush != nullptr;
  if (holds_back) check(transport_.flush(context_, native(stream), lane), "transfers could not be started");
}

void PluginEndpoint::wait(const Stream& stream, int peer, std::uint32_t flag) {
  check(transport_.wait(context_, native(stream), peer, flag), "a stream cannot wait for an arrival");
}

void PluginEndpoint::wait_sent(const Stream& stream) {
  check(transport_.wait_sent(context_, native(stream)), "a stream cannot wait for what was sent");
}

bool PluginEndpoint::arrived(int peer, std::uint32_t flag) const noexcept {
  return transport_.arrived(context_, peer, flag) != 0;
}

bool PluginEndpoint::sent(int peer, std::uint32_t lane) const noexcept {
  const bool tells = transport_.struct_size >= offsetof(tandem_transport, sent) + sizeof(transport_.sent) &&
                     transport_.sent != nullptr;
  return !tells || transport_.sent(context_, peer, lane) != 0;
}

Region PluginEndpoint::allocate(std::size_t bytes) {
  void* base = nullptr;
  std::uint64_t id = 0;
  const tandem_status code = transport_.allocate(context_, bytes, &base, &id);
  if (code != TANDEM_OK) {
    throw Error(
        static_cast<ErrorCode>(code),
        fmt::format("transport {}: no {} of memory that peers can write to", transport_.name, format_bytes(bytes)),
        rank_);
  }
  std::shared_ptr<void> memory(base, [self = std::static_pointer_cast<PluginEndpoint>(shared_from_this()), id](void*) {
    self->transport_.release(self->context_, id);
  });
  return {Buffer(std::move(memory), bytes), id};
}

std::string PluginEndpoint::describe(std::uint64_t region) {
  std::string bytes(4096, '\0');
  std::uint64_t size = bytes.size();
  check(transport_.describe(context_, region, bytes.data(), &size), "memory cannot be described to peers");
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

void PluginEndpoint::attach(std::uint64_t region, std::span<const std::string> blobs) {
  std::vector<const void*> data;
  std::vector<std::uint64_t> sizes;
  for (const std::string& blob : blobs) {
    data.push_back(blob.data());
    sizes.push_back(blob.size());
  }
  check(transport_.attach(context_, region, data.data(), sizes.data()), "the memory of peers cannot be reached");
}

void PluginEndpoint::on_log(void* user, std::int32_t level, const char* message) {
  auto* self = static_cast<PluginEndpoint*>(user);
  if (self->opening_.load() && level == TANDEM_LOG_ERROR) {
    const std::lock_guard lock(self->error_mutex_);
    self->last_error_ = message;  // becomes the text of the exception
    return;
  }
  const auto l = static_cast<log::Level>(std::clamp(level, std::int32_t{0}, std::int32_t{3}));
  if (log::enabled(l)) log::write(l, fmt::format("{}: {}", self->transport_.name, message));
}

void PluginEndpoint::on_peer_failed(void* user, std::int32_t peer, const char* reason) {
  auto* self = static_cast<PluginEndpoint*>(user);
  self->peer_failed_(peer, reason != nullptr ? reason : "");
}

}  // namespace tandem::detail
