// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tandem/deadline.hpp"
#include "tandem/device.hpp"
#include "tandem/error.hpp"
#include "tandem/plugin/transport.h"

namespace tandem::detail {

using GroupId = std::array<std::uint8_t, 16>;

/// One transfer as the host side writes it down.
struct WireTransfer {
  int peer = 0;
  bool receive = false;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;
  // Stream-ordered transports only; the region and offset for sends of one-sided ones.
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  std::uint32_t flag = 0;
};

/// What a post means to its lane: see transport.h.
struct LaneUse {
  std::uint32_t lane = 0;
  bool begin = false;
  bool first = false;
  bool last = false;
};

/// Memory that peers may write to. Its buffers keep the endpoint open.
struct Region {
  Buffer buffer;
  std::uint64_t id = 0;
};

/// A transport context of one group: the C interface with errors as exceptions and completions as closures. Any thread.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  using PeerFailed = std::function<void(int peer, const std::string& reason)>;
  using Completion = std::function<void(std::size_t index, const Status& status)>;

  Endpoint(const tandem_transport& transport, int rank, int size, const GroupId& group,
           const std::map<std::string, std::string>& options, int cuda_device, PeerFailed peer_failed);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const char* name() const noexcept { return transport_.name; }
  std::string address();
  /// `addresses[p]` of every rank. Blocks until connected to all; throws timeout naming the ranks that are not.
  void connect(std::span<const std::string> addresses, Deadline deadline);
  /// `done(i, status)` is called once for each transfer, from a thread of the transport. Throws if nothing was started.
  void post(std::span<const WireTransfer> transfers, Completion done);
  void abort(const std::string& reason) noexcept;

  // Stream-ordered transports.
  void post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use);
  void wait(const Stream& stream, int peer, std::uint32_t flag);
  void wait_sent(const Stream& stream);
  bool arrived(int peer, std::uint32_t flag) const noexcept;
  /// True, too, if the transport does not tell.
  bool sent(int peer, std::uint32_t lane) const noexcept;
  std::uint32_t flag_limit() const noexcept { return transport_.flag_limit; }
  std::uint32_t lane_limit() const noexcept { return transport_.lane_limit; }

  // One-sided transports.
  Region allocate(std::size_t bytes);
  std::string describe(std::uint64_t region);
  void attach(std::uint64_t region, std::span<const std::string> blobs);

 private:
  void check(tandem_status code, const char* what) const;
  static void on_log(void* user, std::int32_t level, const char* message);
  static void on_peer_failed(void* user, std::int32_t peer, const char* reason);

  const tandem_transport& transport_;
  const int rank_;
  const int size_;
  PeerFailed peer_failed_;
  std::mutex error_mutex_;
  std::string last_error_;  // what the plugin logged while open() ran
  std::atomic<bool> opening_{true};
  tandem_host_services services_{};
  tandem_transport_context* context_ = nullptr;
};

bool is_stream_ordered(const tandem_transport& transport) noexcept;

}  // namespace tandem::detail
