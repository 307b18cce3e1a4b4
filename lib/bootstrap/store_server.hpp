// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "bootstrap/connection.hpp"
#include "bootstrap/key_table.hpp"
#include "bootstrap/roster.hpp"

namespace tandem::detail {

/// The one implementation. All but the public calls runs on its own thread.
class AsioStoreServer final : public StoreServer {
 public:
  /// `serving_rank`: the rank whose WORLD_SIZE is options.size, if one serves by its environment.
  explicit AsioStoreServer(const StoreServerOptions& options, std::optional<int> serving_rank = std::nullopt);
  AsioStoreServer(const AsioStoreServer&) = delete;
  AsioStoreServer& operator=(const AsioStoreServer&) = delete;
  ~AsioStoreServer() override;

  std::uint16_t port() const noexcept override { return port_; }
  std::uint64_t dropped_hellos() const noexcept override { return dropped_; }
  bool wait_all_left(Deadline deadline) override;
  std::vector<int> missing_ranks() const override;
  void stop() noexcept override;

 private:
  struct Guest;  // a connection that has not said a good hello yet
  struct Member {
    std::shared_ptr<Connection> connection;
    int silent_checks = 0;
    bool aborted = false;
    std::unordered_map<std::uint64_t, std::string> waits;  // id of a blocked get -> its key
  };
  struct PastNotice {
    int origin;
    Store::Notice notice;
  };

  void accept_next();
  void accept_all();
  void receive(boost::asio::ip::tcp::socket socket);
  void greet(const std::shared_ptr<Guest>& guest);
  void drop(const Guest& guest, const char* why);
  void admit(boost::asio::ip::tcp::socket socket, const wire::Hello& hello);
  std::string size_conflict(const wire::Hello& hello) const;
  void doubt(int rank, const std::string& why);

  void handle(int rank, wire::Message message);
  void handle_request(int rank, const wire::Message& message);
  void answer_waits(const std::string& key, const std::string& value);
  void say_good_bye(int rank, std::uint64_t id);
  void lose(int rank, const std::string& reason);
  void tell_others(int origin, const Store::Notice& notice);
  void schedule_check();
  void check_silence();

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void send(int rank, const wire::Message& message) { member(rank).connection->send(wire::frame(message)); }

  const StoreServerOptions options_;
  const std::optional<int> serving_rank_;
  boost::asio::io_context io_{1};
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer check_timer_;
  std::uint16_t port_ = 0;
  std::atomic<std::uint64_t> dropped_{0};

  KeyTable keys_;
  std::vector<Member> members_;  // by rank
  std::set<std::shared_ptr<Guest>> guests_;
  std::vector<PastNotice> notices_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Roster roster_;
  std::set<int> saying_good_bye_;  // left, but the answer is not out yet
  bool stopped_ = false;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace tandem::detail
