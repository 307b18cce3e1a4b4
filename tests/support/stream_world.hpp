// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/impl.hpp"
#include "support/stream_transport.hpp"
#include "tandem/device.hpp"
#include "tandem/plugin/transport.h"
#include "transports/common/plugin.hpp"

namespace tandem::testing {

/// Who is at which point of what: the state of all ranks of one group, under one lock. What is enqueued counts
/// generations of lanes when it is issued, and compares them with the lane's when it runs.
class StreamWorld : public std::enable_shared_from_this<StreamWorld> {
 public:
  using Group = std::array<std::uint8_t, 16>;
  static std::shared_ptr<StreamWorld> join(const Group& group, int rank, int size, std::uint64_t delay_us,
                                           std::uint64_t seed);

  void post(int rank, const std::vector<tandem_transfer>& transfers, detail::StreamImpl& stream,
            const plugin::LaneUse& use);
  void wait(int rank, detail::StreamImpl& stream, int peer, std::uint32_t flag);
  void wait_sent(int rank, detail::StreamImpl& stream);
  bool arrived(int rank, int peer, std::uint32_t flag);
  bool sent(int rank, int peer, std::uint32_t lane);
  std::uint64_t allocate(int rank, std::uint64_t bytes, void** base);
  void release(int rank, std::uint64_t region);
  bool is_open(int rank);
  bool is_aborted(int rank);
  /// Nothing of the rank's memory is touched after it.
  void abort(int rank);

  explicit StreamWorld(int size) : members_(static_cast<std::size_t>(size)) {}

 private:
  struct Flag {
    std::uint64_t issued = 0;  // receives that were posted for it
    std::uint64_t begun = 0;   // that were begun on their stream
    std::uint64_t lane_use = 0;
    std::uint32_t lane = 0;
    bool up = false;
    std::uint64_t tag = 0;
    std::uint64_t expected = 0;  // bytes
    std::uint64_t received = 0;
    std::map<std::uint64_t, int> waiting;  // by receive: streams that have still to pass it
  };
  struct Lane {
    std::uint64_t issued = 0;
    std::uint64_t begun = 0;
    std::set<int> ready;                 // receivers that told this rank so
    std::map<int, std::uint64_t> taken;  // the operation for which their news was taken
    std::set<int> sent;
  };
  struct Region {
    std::shared_ptr<std::byte> memory;
    std::uint64_t bytes = 0;
  };
  struct Member {
    bool open = false;
    bool aborted = false;
    int busy = 0;  // copies that touch its memory
    std::map<std::pair<int, std::uint32_t>, Flag> flags;
    std::map<std::uint32_t, Lane> lanes;
    std::vector<Region> regions;
    std::map<int, Stream> push;
  };
  struct Push {
    tandem_transfer transfer;
    std::uint32_t lane;
    std::uint64_t use;
    bool raises;
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void begin(int rank, detail::StreamImpl& stream, std::uint32_t lane, std::vector<tandem_transfer> receives);
  void run_begin(int rank, std::uint32_t lane, std::uint64_t use, const std::vector<tandem_transfer>& receives,
                 const std::map<std::pair<int, std::uint32_t>, std::uint64_t>& numbers);
  void send(int rank, detail::StreamImpl& stream, const plugin::LaneUse& lane_use,
            const std::vector<tandem_transfer>& sends);
  void take_ready(int rank, int peer, std::uint32_t lane, std::uint64_t use);
  void copy(int rank, const Push& push);
  std::byte* check_push(int rank, const Push& push);  // with the lock held; null if it is wrong
  void pause(int rank);
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, int rank, Done done);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::uint64_t delay_us_ = 0;
  std::atomic<std::uint64_t> noise_{0};
};

void report_violation(const std::string& what);
/// The value of option "refuse": "0+2" -> {0, 2}.
std::set<std::uint64_t> refused_peers(const std::string& list);
/// Blocks while a gate holds the transfer, or until `given_up`.
void pass_gate(const StreamDelivery& delivery, const std::function<bool()>& given_up);

}  // namespace tandem::testing
