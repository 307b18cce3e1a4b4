// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "device/impl.hpp"
#include "tandem/device.hpp"
#include "tandem/plugin/transport.h"
#include "transports/common/plugin.hpp"

namespace tandem::testing {

/// Who has started what: the state of all ranks of one group, under one lock. As NCCL does, a rank starts the sends and
/// receives of a round together, on a stream of its own, and gets to the next round when all of them are done; between
/// two ranks the n-th send is the n-th receive, whatever either of them means by it.
class GroupedWorld : public std::enable_shared_from_this<GroupedWorld> {
 public:
  using Group = std::array<std::uint8_t, 16>;
  static std::shared_ptr<GroupedWorld> join(const Group& group, int rank, int size, std::uint64_t delay_us,
                                            std::uint64_t seed);

  void post(int rank, const std::vector<tandem_transfer>& transfers, detail::StreamImpl& stream,
            const plugin::LaneUse& use);
  void flush(int rank, detail::StreamImpl& stream, std::uint32_t lane);
  void wait(int rank, detail::StreamImpl& stream, int peer, std::uint32_t flag);
  void wait_sent(int rank, detail::StreamImpl& stream);
  bool arrived(int rank, int peer, std::uint32_t flag);
  bool sent(int rank, int peer, std::uint32_t lane);
  bool is_open(int rank);
  bool is_aborted(int rank);
  /// Nothing of the rank's memory is touched after it.
  void abort(int rank);

  explicit GroupedWorld(int size) : members_(static_cast<std::size_t>(size)) {}

 private:
  using FlagKey = std::pair<int, std::uint32_t>;  // peer, flag
  struct Flag {
    std::uint64_t issued = 0;  // receives that were posted for it
    std::uint64_t begun = 0;   // that were begun on their stream
    bool up = false;
    std::map<std::uint64_t, int> waiting;  // by receive: streams that have still to pass it
  };
  struct Lane {
    bool open = false;  // begun and not flushed
    std::vector<tandem_transfer> transfers;
    std::vector<std::shared_ptr<detail::EventImpl>> posts;
    std::set<int> sent;
  };
  /// A send or receive that a rank has started.
  struct Started {
    tandem_transfer transfer;
    std::size_t* to_do;
  };
  struct Member {
    bool open = false;
    bool aborted = false;
    std::map<FlagKey, Flag> flags;
    std::map<std::uint32_t, Lane> lanes;
    Stream rounds;  // the stream on which they run
  };
  struct Channel {
    std::deque<Started> sends, receives;
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void begin(int rank, detail::StreamImpl& stream, std::uint32_t lane, const std::vector<tandem_transfer>& receives);
  void run_round(int rank, const std::vector<tandem_transfer>& transfers);
  void match(int sender, int receiver);  // with the lock held
  void pause(int rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
  std::uint64_t delay_us_ = 0;
  std::uint64_t noise_ = 0;
};

}  // namespace tandem::testing
