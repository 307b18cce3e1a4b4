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
};

/// A transport context of one group: the C interface with errors as exceptions and completions as closures. Any thread.
class Endpoint {
 public:
  using PeerFailed = std::function<void(int peer, const std::string& reason)>;
  using Completion = std::function<void(std::size_t index, const Status& status)>;

  Endpoint(const tandem_transport& transport, int rank, int size, const GroupId& group,
           const std::map<std::string, std::string>& options, PeerFailed peer_failed);
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

 private:
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

}  // namespace tandem::detail
