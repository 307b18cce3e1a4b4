// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "bootstrap/connection.hpp"
#include "bootstrap/join_server.hpp"
#include "bootstrap/notice_board.hpp"
#include "bootstrap/request_store.hpp"

namespace tandem::detail {

/// The client of a StoreServer: one connection, and one thread that reads, sends heartbeats and calls listeners.
class TcpStore final : public RequestStore {
 public:
  TcpStore(const TcpStoreOptions& options, std::unique_ptr<boost::asio::io_context> io, Joined joined);
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override;

  Reply request(Request request, Deadline deadline, const View& view) override;
  void wake() noexcept override;
  std::shared_ptr<void> listen(Listener listener) override;
  void announce(const Notice& notice) noexcept override;
  void leave(Deadline deadline) override;
  void close() noexcept override;

 private:
  struct Call {
    std::condition_variable ready;
    std::optional<wire::Message> answer;
  };

  // Sends the message with a fresh id and waits for the answer; nothing if the deadline passed. Throws if the
  // connection has ended or the store was closed, or the view (if given) is no longer open.
  std::optional<wire::Message> exchange(wire::Message message, Deadline deadline, const View* view);
  void post_frame(std::string frame);

  // On the store's thread.
  void handle(wire::Message message);
  void schedule_heartbeat();
  void beat();
  void hear(Notice notice);
  void lose_server(const std::string& reason);
  void fail(Error error);
  void end_connection();

  const TcpStoreOptions options_;
  const std::unique_ptr<boost::asio::io_context> io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::steady_timer flush_timer_;
  const std::chrono::milliseconds heartbeat_interval_;
  const int most_silent_beats_;
  int silent_beats_ = 0;
  std::shared_ptr<Connection> connection_;
  NoticeBoard board_;

  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::uint64_t, Call*> calls_;
  std::uint64_t next_id_ = 1;
  std::optional<Error> failure_;  // why the connection ended

  std::thread thread_;
};

}  // namespace tandem::detail
