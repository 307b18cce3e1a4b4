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
  std::uint64_t round = 0;
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

/// What an endpoint can do: see transport.h.
struct Traits {
  bool stream_ordered = false;
  bool one_sided = false;
  bool captures = false;  ///< streams that are being captured may be given to it
  std::uint32_t flag_limit = 0;
  std::uint32_t lane_limit = 0;
};

/// How one rank of a group reaches the others: a transport's context, or several behind one face. Errors are
/// exceptions, completions closures. Any thread.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  using PeerFailed = std::function<void(int peer, const std::string& reason)>;
  using Completion = std::function<void(std::size_t index, const Status& status)>;

  Endpoint() = default;
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  virtual Traits traits() const noexcept = 0;
  /// The transport that moves what goes to or comes from `peer`.
  virtual std::string name(int peer) const = 0;
  virtual void abort(const std::string& reason) noexcept = 0;

  // To be connected once.
  virtual std::string address();
  /// `addresses[p]` of every rank. Blocks until connected to all; throws timeout naming the ranks that are not.
  virtual void connect(std::span<const std::string> addresses, Deadline deadline);
  /// The same, but gives by rank why it is out of reach; empty if it is not.
  virtual std::vector<std::string> try_connect(std::span<const std::string> addresses, Deadline deadline);

  // Host-driven ones; the others throw unsupported.
  /// `done(i, status)` is called once for each transfer, from a thread of the transport. Throws if nothing was started.
  virtual void post(std::span<const WireTransfer> transfers, Completion done);

  // Stream-ordered ones.
  virtual void post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use);
  /// The lane's operation has been posted.
  virtual void flush(const Stream& stream, std::uint32_t lane);
  virtual void wait(const Stream& stream, int peer, std::uint32_t flag);
  virtual void wait_sent(const Stream& stream);
  virtual bool arrived(int peer, std::uint32_t flag) const noexcept;
  /// True, too, if the transport does not tell.
  virtual bool sent(int peer, std::uint32_t lane) const noexcept;
  /// What comes from `peer` gets to its buffer only behind wait(), on the stream that was given to it: for each receive
  /// of an operation it is called once, others wait for that stream, and the lane's next operation begins behind them.
  virtual bool places_on_wait(int peer) const noexcept;
  /// Makes ready for operations of so many bytes on the lane: so much that is received, and that is sent. May block.
  virtual void reserve(std::uint32_t lane, std::size_t received, std::size_t sent);

  // One-sided ones.
  virtual Region allocate(std::size_t bytes);
  virtual std::string describe(std::uint64_t region);
  virtual void attach(std::uint64_t region, std::span<const std::string> blobs);
};

/// A transport context of one group.
class PluginEndpoint final : public Endpoint {
 public:
  PluginEndpoint(const tandem_transport& transport, int rank, int size, const GroupId& group,
                 const std::map<std::string, std::string>& options, int cuda_device, PeerFailed peer_failed);
  ~PluginEndpoint() override;

  Traits traits() const noexcept override;
  std::string name(int peer) const override;
  std::string address() override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::vector<std::string> try_connect(std::span<const std::string> addresses, Deadline deadline) override;
  void abort(const std::string& reason) noexcept override;
  void post(std::span<const WireTransfer> transfers, Completion done) override;
  void post(const Stream& stream, std::span<const WireTransfer> transfers, const LaneUse& use) override;
  void flush(const Stream& stream, std::uint32_t lane) override;
  void wait(const Stream& stream, int peer, std::uint32_t flag) override;
  void wait_sent(const Stream& stream) override;
  bool arrived(int peer, std::uint32_t flag) const noexcept override;
  bool sent(int peer, std::uint32_t lane) const noexcept override;
  Region allocate(std::size_t bytes) override;
  std::string describe(std::uint64_t region) override;
  void attach(std::uint64_t region, std::span<const std::string> blobs) override;

 private:
  void check(tandem_status code, const char* what) const;
  tandem_status start_to_connect(std::span<const std::string> addresses);
  std::string connect_error(int peer) const;
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
