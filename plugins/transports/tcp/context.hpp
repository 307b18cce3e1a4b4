// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
// asio's headers use std::exchange without including <utility> themselves.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "transports/tcp/address.hpp"
#include "transports/tcp/handshake.hpp"
#include "transports/tcp/peer.hpp"

namespace tandem::tcp {

struct Options {
  std::string interface;     // "" is all
  bool unix_sockets = true;  // between processes of one host
  std::uint64_t segment_bytes = 1U << 20;
  std::uint64_t repeat = 1;  // how often every segment travels
  std::uint64_t socket_buffer_bytes = 0;
};

/// One rank of one group. Its progress thread owns everything but the inbox, through which posts and aborts come in.
class Context {
 public:
  /// Listens and starts the thread. Throws tandem::Error.
  Context(const Membership& self, const Options& options, const plugin::Host& host);
  /// Completes what is pending with aborted, lets the last bytes leave, closes.
  ~Context();

  const plugin::Host& host() const { return host_; }
  int rank() const { return self_.rank; }
  int size() const { return self_.size; }
  std::string address() const { return own_address_.encode(); }
  /// Throws tandem::Error naming the peer whose address makes no sense.
  void connect(const std::vector<std::string_view>& addresses);
  tandem_status connect_test(int peer) const { return peers_[static_cast<std::size_t>(peer)]->status(); }
  void post(const std::vector<tandem_transfer>& transfers, tandem_completion_fn on_complete, void* user);
  void abort(const std::string& reason) { end_with(ErrorCode::aborted, reason); }

 private:
  struct End {
    ErrorCode code;
    std::string reason;
  };

  void end_with(ErrorCode code, const std::string& reason);
  void run();
  void progress();
  bool work_where(bool (Peer::*is_so)() const);
  bool has_pending() const;
  void empty_inbox();
  void end_everything(const End& end);
  void linger();
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }

  const Membership self_;
  const plugin::Host host_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Peer>> peers_;  // the own one is never used
  std::optional<Listener> listener_;
  std::vector<std::shared_ptr<Dialer>> dialers_;  // as all above, of the progress thread
  Address own_address_;
  bool ended_ = false;

  std::mutex mutex_;  // of what follows
  std::vector<Operation> inbox_;
  std::optional<End> end_;  // once aborted: what everything completes with
  bool woken_ = false;

  std::thread thread_;
};

}  // namespace tandem::tcp
