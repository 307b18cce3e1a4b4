// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transports/common/plugin.hpp"
#include "transports/loopback/gates.hpp"

namespace tandem::loopback {

using Clock = std::chrono::steady_clock;
using GroupId = std::array<std::uint8_t, 16>;

struct Options {
  std::uint64_t delay_us = 0;
  std::uint64_t seed = 0;
};

/// The ranks of one process that share a group id: their transfers meet here. Each member has one thread, which moves
/// the bytes it receives and makes all calls into its host.
class Group {
 public:
  /// The group of this id, made by the first to come. Throws std::invalid_argument if the rank is taken or sizes
  /// differ.
  static std::shared_ptr<Group> join(const GroupId& id, int size, int rank, const Options& options,
                                     const plugin::Host& host);
  Group(const GroupId& id, int size);

  void post(int rank, const std::vector<tandem_transfer>& transfers, tandem_completion_fn on_complete, void* user);
  void abort(int rank, const std::string& reason);
  /// Joins the member's thread.
  void leave(int rank);
  tandem_status test_peer(int peer);
  void wake_all();

 private:
  /// One side of a transfer.
  struct Posted {
    tandem_completion_fn on_complete;
    void* user;
    std::uint64_t index;
    void* buffer;
    std::uint64_t bytes;
  };
  struct Route {
    int src;
    int dst;
    std::uint64_t tag;
    auto operator<=>(const Route&) const = default;
  };
  /// What is posted on a route and not matched yet, oldest first. One matched pair at a time is `under_way`.
  struct Channel {
    std::deque<Posted> sends;
    std::deque<Posted> receives;
    bool under_way = false;
  };
  struct Pair {
    Route route;
    Posted send;
    Posted receive;
    std::shared_ptr<GateState> gate;
    std::atomic<bool> cancelled{false};  // read while the bytes move, outside the lock
  };
  using Due = std::pair<Clock::time_point, std::uint64_t>;  // and a serial number: equal times keep their order
  enum class State { absent, open, aborted, left };
  struct Member {
    State state = State::absent;
    Options options;
    plugin::Host host{nullptr};
    std::string abort_reason;
    std::set<int> failed_peers;
    std::deque<std::function<void()>> calls;  // into the host, in order
    std::map<Due, std::shared_ptr<Pair>> waiting;
    std::list<std::shared_ptr<Pair>> held;
    std::shared_ptr<Pair> moving;
    bool stop = false;
    std::condition_variable changed;
    std::thread thread;
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void run(Member& m);
  bool run_calls(Member& m, std::unique_lock<std::mutex>& lock);
  void move_bytes(Member& m, std::shared_ptr<Pair> pair, std::unique_lock<std::mutex>& lock);
  void requeue_released(Member& m);

  void match(const Route& route);
  void settle(Pair& pair);
  void settle_side(Pair& pair, bool send_side);
  void end(int rank, State state, const std::string& reason);
  void cancel_pairs_of(int rank);
  void complete(int rank, const Posted& posted, ErrorCode code, std::string message);
  void complete_aborted(int rank, const Posted& posted);
  void complete_peer_left(int rank, int peer, const Posted& posted);
  Clock::duration delay(const Member& receiver, const Route& route) const;
  bool is_moving(int rank) const;

  const GroupId id_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<Member> members_;
  std::map<Route, Channel> channels_;
  std::uint64_t serial_ = 0;
};

/// After a gate opened.
void wake_all_groups();

}  // namespace tandem::loopback
