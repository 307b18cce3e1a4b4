// SPDX-License-Identifier: Apache-2.0
#include "support/grouped_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "support/stream_world.hpp"
#include "tandem/error.hpp"

namespace tandem::testing {

std::shared_ptr<GroupedWorld> GroupedWorld::join(const Group& group, int rank, int size, std::uint64_t delay_us,
                                                 std::uint64_t seed) {
  static std::mutex worlds_mutex;
  static std::map<Group, std::weak_ptr<GroupedWorld>> worlds;
  const std::lock_guard lock(worlds_mutex);
  std::shared_ptr<GroupedWorld> world = worlds[group].lock();
  if (!world) worlds[group] = world = std::make_shared<GroupedWorld>(size);
  const std::lock_guard inner(world->mutex_);
  world->delay_us_ = delay_us;
  world->noise_ += seed * 977 + static_cast<std::uint64_t>(rank);
  world->member(rank).open = true;
  return world;
}

void GroupedWorld::pause(int rank) {
  std::unique_lock lock(mutex_);
  if (delay_us_ == 0) return;
  std::uint64_t z = noise_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  changed_.wait_for(lock, std::chrono::microseconds((z ^ (z >> 27)) % (delay_us_ + 1)),
                    [&] { return member(rank).aborted; });
}

void GroupedWorld::post(int rank, const std::vector<tandem_transfer>& transfers, detail::StreamImpl& stream,
                        const plugin::LaneUse& use) {
  if (is_aborted(rank)) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
  {
    const std::lock_guard lock(mutex_);
    Lane& lane = member(rank).lanes[use.lane];
    if (lane.open == (use.begin))
      report_violation(fmt::format("rank {}: lane {} is {} open", rank, use.lane, lane.open ? "still" : "not"));
    lane.open = true;
    lane.transfers.insert(lane.transfers.end(), transfers.begin(), transfers.end());
  }
  if (use.begin) begin(rank, stream, use.lane, transfers);
  const auto event = stream.device().create_event();
  stream.record(*event);
  const std::lock_guard lock(mutex_);
  member(rank).lanes[use.lane].posts.push_back(event);
}

void GroupedWorld::begin(int rank, detail::StreamImpl& stream, std::uint32_t lane,
                         const std::vector<tandem_transfer>& receives) {
  std::map<FlagKey, std::uint64_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    for (const tandem_transfer& t : receives) {
      const FlagKey key{t.peer, t.flag};
      if (!numbers.contains(key)) numbers[key] = ++member(rank).flags[key].issued;
    }
  }
  stream.run([self = shared_from_this(), rank, lane, numbers] {
    self->pause(rank);
    const std::lock_guard lock(self->mutex_);
    self->member(rank).lanes[lane].sent.clear();
    for (const auto& [key, number] : numbers) {
      Flag& flag = self->member(rank).flags[key];
      for (const auto& [receive, count] : flag.waiting) {
        if (receive < number && count > 0)
          report_violation(fmt::format("rank {} resets flag {} of rank {} under {} waiting streams", rank, key.second,
                                       key.first, count));
      }
      flag.begun = number;
      flag.up = false;
    }
  });
}

void GroupedWorld::flush(int rank, detail::StreamImpl& stream, std::uint32_t lane_number) {
  Lane posted;
  Stream rounds;
  {
    const std::lock_guard lock(mutex_);
    Member& me = member(rank);
    if (me.aborted) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
    Lane& lane = me.lanes[lane_number];
    if (!lane.open) report_violation(fmt::format("rank {}: lane {} is flushed twice", rank, lane_number));
    lane.open = false;
    posted.transfers.swap(lane.transfers);
    posted.posts.swap(lane.posts);
    if (!me.rounds.valid()) me.rounds = Device(stream.device_handle()).create_stream({.name = "rounds", .copy = true});
    rounds = me.rounds;
  }
  const auto event = stream.device().create_event();
  stream.record(*event);
  rounds.impl().wait(*event);
  for (const auto& post : posted.posts) rounds.impl().wait(*post);
  std::stable_sort(posted.transfers.begin(), posted.transfers.end(), [](const auto& a, const auto& b) {
    return std::pair(a.round, a.flag) < std::pair(b.round, b.flag);
  });
  std::set<int> receivers;
  for (auto from = posted.transfers.begin(); from != posted.transfers.end();) {
    const auto to = std::find_if(from, posted.transfers.end(), [&](const auto& t) { return t.round != from->round; });
    for (auto t = from; t != to; ++t) {
      if (t->direction == TANDEM_SEND) receivers.insert(t->peer);
    }
    rounds.run([self = shared_from_this(), rank, round = std::vector<tandem_transfer>(from, to)] {
      self->pause(rank);
      self->run_round(rank, round);
    });
    from = to;
  }
  rounds.run([self = shared_from_this(), rank, lane_number, receivers] {
    const std::lock_guard lock(self->mutex_);
    self->member(rank).lanes[lane_number].sent.insert(receivers.begin(), receivers.end());
  });
}

void GroupedWorld::run_round(int rank, const std::vector<tandem_transfer>& transfers) {
  std::unique_lock lock(mutex_);
  Member& me = member(rank);
  if (me.aborted) return;
  std::size_t to_do = transfers.size();
  std::set<int> peers;
  for (const tandem_transfer& t : transfers) {
    const bool sends = t.direction == TANDEM_SEND;
    Channel& channel = sends ? channels_[{rank, t.peer}] : channels_[{t.peer, rank}];
    (sends ? channel.sends : channel.receives).push_back({t, &to_do});
    peers.insert(t.peer);
  }
  for (const int peer : peers) {
    match(rank, peer);
    match(peer, rank);
  }
  changed_.notify_all();
  changed_.wait(lock, [&] { return me.aborted || to_do == 0; });
  if (me.aborted) {
    for (auto& [ends, channel] : channels_) {
      std::erase_if(channel.sends, [&](const Started& s) { return s.to_do == &to_do; });
      std::erase_if(channel.receives, [&](const Started& s) { return s.to_do == &to_do; });
    }
    return;
  }
  // As NCCL's: what a round brings is there at its end.
  for (const tandem_transfer& t : transfers) {
    if (t.direction == TANDEM_RECEIVE) me.flags[{t.peer, t.flag}].up = true;
  }
  changed_.notify_all();
}

void GroupedWorld::match(int sender, int receiver) {
  Channel& channel = channels_[{sender, receiver}];
  while (!channel.sends.empty() && !channel.receives.empty()) {
    const Started send = channel.sends.front();
    const Started receive = channel.receives.front();
    channel.sends.pop_front();
    channel.receives.pop_front();
    const tandem_transfer& s = send.transfer;
    const tandem_transfer& r = receive.transfer;
    if (s.tag != r.tag || s.bytes != r.bytes || s.flag != r.flag || s.round != r.round) {
      report_violation(
          fmt::format("rank {} sends {} bytes, tag {:#x}, flag {}, round {:#x}; rank {} receives {}, {:#x}, {}, {:#x}",
                      sender, s.bytes, s.tag, s.flag, s.round, receiver, r.bytes, r.tag, r.flag, r.round));
    } else if (s.bytes > 0) {
      std::memcpy(r.buffer, s.buffer, s.bytes);
    }
    --*send.to_do;
    --*receive.to_do;
  }
}

void GroupedWorld::wait(int rank, detail::StreamImpl& stream, int peer, std::uint32_t flag) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    Member& me = member(rank);
    if (me.aborted) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
    Flag& f = me.flags[{peer, flag}];
    number = f.issued;
    for (const auto& [n, lane] : me.lanes) {
      const bool held_back =
          lane.open && std::any_of(lane.transfers.begin(), lane.transfers.end(), [&](const tandem_transfer& t) {
            return t.direction == TANDEM_RECEIVE && t.peer == peer && t.flag == flag;
          });
      if (held_back) report_violation(fmt::format("rank {} waits for what it has not flushed, in lane {}", rank, n));
    }
    ++f.waiting[number];
  }
  stream.run([self = shared_from_this(), rank, peer, flag, number] {
    self->pause(rank);
    std::unique_lock lock(self->mutex_);
    Member& me = self->member(rank);
    Flag& f = me.flags[{peer, flag}];
    if (f.begun != number && !me.aborted) {
      report_violation(fmt::format("rank {} waits for receive {} of flag {} of rank {} when {} has begun", rank, number,
                                   flag, peer, f.begun));
    }
    self->changed_.wait(lock, [&] { return me.aborted || f.up; });
    if (--f.waiting[number] == 0) f.waiting.erase(number);
  });
}

void GroupedWorld::wait_sent(int rank, detail::StreamImpl& stream) {
  Stream rounds;
  {
    const std::lock_guard lock(mutex_);
    if (member(rank).aborted) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
    rounds = member(rank).rounds;
  }
  if (!rounds.valid()) return;
  const auto event = stream.device().create_event();
  rounds.impl().record(*event);
  stream.wait(*event);
}

bool GroupedWorld::arrived(int rank, int peer, std::uint32_t flag) {
  const std::lock_guard lock(mutex_);
  const auto it = member(rank).flags.find({peer, flag});
  return it != member(rank).flags.end() && it->second.up;
}

bool GroupedWorld::sent(int rank, int peer, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  return member(rank).lanes[lane].sent.contains(peer);
}

bool GroupedWorld::is_open(int rank) {
  const std::lock_guard lock(mutex_);
  return member(rank).open;
}

bool GroupedWorld::is_aborted(int rank) {
  const std::lock_guard lock(mutex_);
  return member(rank).aborted;
}

void GroupedWorld::abort(int rank) {
  const std::lock_guard lock(mutex_);
  member(rank).aborted = true;
  // What it has started must not be matched any more; the entries go with their round, which is woken.
  for (auto& [ends, channel] : channels_) {
    if (ends.first == rank) channel.sends.clear();
    if (ends.second == rank) channel.receives.clear();
  }
  changed_.notify_all();
}

}  // namespace tandem::testing
