// SPDX-License-Identifier: Apache-2.0
#include "support/stream_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tandem/error.hpp"

namespace tandem::testing {

namespace {

std::mutex worlds_mutex;
std::map<StreamWorld::Group, std::weak_ptr<StreamWorld>>& worlds() {
  static std::map<StreamWorld::Group, std::weak_ptr<StreamWorld>> all;
  return all;
}

}  // namespace

std::shared_ptr<StreamWorld> StreamWorld::join(const Group& group, int rank, int size, std::uint64_t delay_us,
                                               std::uint64_t seed) {
  const std::lock_guard lock(worlds_mutex);
  std::shared_ptr<StreamWorld> world = worlds()[group].lock();
  if (!world) worlds()[group] = world = std::make_shared<StreamWorld>(size);
  const std::lock_guard inner(world->mutex_);
  world->delay_us_ = delay_us;
  world->noise_ += seed * 977 + static_cast<std::uint64_t>(rank);
  world->member(rank).open = true;
  return world;
}

template <class Done>
void StreamWorld::wait_until(std::unique_lock<std::mutex>& lock, int rank, Done done) {
  changed_.wait(lock, [&] { return member(rank).aborted || done(); });
}

void StreamWorld::pause(int rank) {
  if (delay_us_ == 0) return;
  std::uint64_t z = noise_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds((z ^ (z >> 27)) % (delay_us_ + 1)),
                    [&] { return member(rank).aborted; });
}

void StreamWorld::post(int rank, const std::vector<tandem_transfer>& transfers, detail::StreamImpl& stream,
                       const plugin::LaneUse& use) {
  if (is_aborted(rank)) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
  if (use.begin) {
    begin(rank, stream, use.lane, transfers);
  } else {
    send(rank, stream, use, transfers);
  }
}

void StreamWorld::begin(int rank, detail::StreamImpl& stream, std::uint32_t lane,
                        std::vector<tandem_transfer> receives) {
  std::uint64_t use = 0;
  std::map<std::pair<int, std::uint32_t>, std::uint64_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    use = ++member(rank).lanes[lane].issued;
    for (const tandem_transfer& t : receives) {
      if (numbers.contains({t.peer, t.flag})) continue;
      numbers[{t.peer, t.flag}] = ++member(rank).flags[{t.peer, t.flag}].issued;
    }
  }
  stream.run([self = shared_from_this(), rank, lane, use, receives = std::move(receives), numbers] {
    self->pause(rank);
    self->run_begin(rank, lane, use, receives, numbers);
  });
}

void StreamWorld::run_begin(int rank, std::uint32_t lane, std::uint64_t use,
                            const std::vector<tandem_transfer>& receives,
                            const std::map<std::pair<int, std::uint32_t>, std::uint64_t>& numbers) {
  const std::lock_guard lock(mutex_);
  Member& me = member(rank);
  if (me.aborted) return;
  const auto wrong = [&](const std::string& what) {
    report_violation(fmt::format("rank {}, use {} of lane {}: {}", rank, use, lane, what));
  };
  if (++me.lanes[lane].begun != use) wrong("begins out of order");
  me.lanes[lane].sent.clear();
  for (auto& [key, flag] : me.flags) {
    if (flag.lane == lane && flag.begun > 0 && flag.lane_use + 1 == use && !flag.up) {
      wrong(fmt::format("begins before flag {} of rank {} was raised", key.second, key.first));
    }
  }
  std::set<int> peers;
  for (const auto& [key, number] : numbers) {
    Flag& flag = me.flags[key];
    if (flag.begun > 0 && flag.lane != lane) wrong(fmt::format("flag {} is of lane {}", key.second, flag.lane));
    for (const auto& [receive, count] : flag.waiting) {
      if (receive < number && count > 0)
        wrong(fmt::format("resets flag {} of rank {} under {} waiting streams", key.second, key.first, count));
    }
    flag.begun = number;
    flag.lane = lane;
    flag.lane_use = use;
    flag.up = false;
    flag.expected = flag.received = 0;
    peers.insert(key.first);
  }
  for (const tandem_transfer& t : receives) {
    Flag& flag = me.flags[{t.peer, t.flag}];
    if (flag.expected > 0 && flag.tag != t.tag) wrong("two receives share a flag");
    flag.tag = t.tag;
    flag.expected += t.bytes;
  }
  for (const int peer : peers) {
    if (!member(peer).lanes[lane].ready.insert(rank).second && !member(peer).aborted)
      wrong(fmt::format("rank {} has not taken the last news", peer));
  }
  changed_.notify_all();
}

void StreamWorld::send(int rank, detail::StreamImpl& stream, const plugin::LaneUse& lane_use,
                       const std::vector<tandem_transfer>& sends) {
  const auto event = stream.device().create_event();
  stream.record(*event);
  std::uint64_t use = 0;
  std::map<int, std::vector<Push>> by_peer;
  std::vector<int> order;
  {
    const std::lock_guard lock(mutex_);
    use = member(rank).lanes[lane_use.lane].issued;
    for (std::size_t i = 0; i < sends.size(); ++i) {
      const tandem_transfer& t = sends[i];
      const bool raises = i + 1 == sends.size() || sends[i + 1].peer != t.peer || sends[i + 1].flag != t.flag;
      if (!by_peer.contains(t.peer)) order.push_back(t.peer);
      by_peer[t.peer].push_back({t, lane_use.lane, use, raises});
    }
    for (const int peer : order) {
      Stream& push = member(rank).push[peer];
      if (!push.valid()) push = Device(stream.device_handle()).create_stream({fmt::format("push {}", peer), true});
    }
  }
  const bool last = lane_use.last;
  for (const int peer : order) {
    const Stream push = member(rank).push.at(peer);
    push.impl().wait(*event);
    if (lane_use.first) {
      push.run([self = shared_from_this(), rank, peer, lane = lane_use.lane, use] {
        self->take_ready(rank, peer, lane, use);
      });
    }
    for (const Push& p : by_peer[peer]) {
      push.run([self = shared_from_this(), rank, p] { self->copy(rank, p); });
    }
    if (!last) continue;
    push.run([self = shared_from_this(), rank, peer, lane = lane_use.lane] {
      const std::lock_guard lock(self->mutex_);
      self->member(rank).lanes[lane].sent.insert(peer);
    });
  }
}

void StreamWorld::take_ready(int rank, int peer, std::uint32_t lane, std::uint64_t use) {
  std::unique_lock lock(mutex_);
  Lane& mine = member(rank).lanes[lane];
  wait_until(lock, rank, [&] { return mine.ready.contains(peer); });
  mine.ready.erase(peer);
  mine.taken[peer] = use;
}

std::byte* StreamWorld::check_push(int rank, const Push& push) {
  const tandem_transfer& t = push.transfer;
  Member& me = member(rank);
  Member& peer = member(t.peer);
  const auto wrong = [&](const std::string& what) -> std::byte* {
    report_violation(
        fmt::format("rank {} to {}, flag {}, use {} of lane {}: {}", rank, t.peer, t.flag, push.use, push.lane, what));
    return nullptr;
  };
  if (me.lanes[push.lane].begun != push.use) return wrong("sends outside of its operation");
  if (me.lanes[push.lane].taken[t.peer] != push.use) return wrong("sends without having waited for the receiver");
  if (peer.lanes[push.lane].begun != push.use) return wrong("sends into another operation of the receiver");
  Flag& flag = peer.flags[{rank, t.flag}];
  if (flag.lane_use != push.use || flag.lane != push.lane) return wrong("nothing is received there");
  if (flag.up) return wrong("something has arrived there already");
  if (flag.tag != t.tag) return wrong(fmt::format("tags {:#x} and {:#x} do not match", t.tag, flag.tag));
  if (t.remote_region >= peer.regions.size() || !peer.regions[t.remote_region].memory)
    return wrong(fmt::format("the receiver has no region {}", t.remote_region));
  const Region& region = peer.regions[t.remote_region];
  if (t.remote_offset > region.bytes || t.bytes > region.bytes - t.remote_offset)
    return wrong("writes past the region");
  return region.memory.get() + t.remote_offset;
}

void StreamWorld::copy(int rank, const Push& push) {
  const tandem_transfer& t = push.transfer;
  pause(rank);
  const auto given_up = [&] { return is_aborted(rank) || is_aborted(t.peer); };
  pass_gate({rank, t.peer, t.tag, t.bytes}, given_up);
  std::unique_lock lock(mutex_);
  Member& me = member(rank);
  Member& peer = member(t.peer);
  if (me.aborted || peer.aborted) return;
  std::byte* const to = check_push(rank, push);
  if (to == nullptr) return;
  ++me.busy;
  ++peer.busy;
  lock.unlock();
  if (t.bytes > 0) std::memcpy(to, t.buffer, t.bytes);
  lock.lock();
  --me.busy;
  --peer.busy;
  Flag& flag = peer.flags[{rank, t.flag}];
  flag.received += t.bytes;
  if (push.raises) {
    flag.up = true;
    if (flag.received != flag.expected && !peer.aborted) {
      report_violation(fmt::format("rank {} received {} bytes of {} for flag {} of rank {}", t.peer, flag.received,
                                   flag.expected, t.flag, rank));
    }
  }
  changed_.notify_all();
}

void StreamWorld::wait(int rank, detail::StreamImpl& stream, int peer, std::uint32_t flag) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    Member& me = member(rank);
    if (me.aborted) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
    Flag& f = me.flags[{peer, flag}];
    number = f.issued;
    if (number == 0)
      report_violation(fmt::format("rank {} waits for flag {} of rank {}, never posted", rank, flag, peer));
    ++f.waiting[number];
  }
  stream.run([self = shared_from_this(), rank, peer, flag, number] {
    self->pause(rank);
    std::unique_lock lock(self->mutex_);
    Flag& f = self->member(rank).flags[{peer, flag}];
    if (f.begun != number && !self->member(rank).aborted) {
      report_violation(fmt::format("rank {} waits for receive {} of flag {} of rank {} when {} has begun", rank, number,
                                   flag, peer, f.begun));
    }
    self->wait_until(lock, rank, [&] { return f.up; });
    if (--f.waiting[number] == 0) f.waiting.erase(number);
  });
}

void StreamWorld::wait_sent(int rank, detail::StreamImpl& stream) {
  std::vector<Stream> pushes;
  {
    const std::lock_guard lock(mutex_);
    if (member(rank).aborted) throw Error(ErrorCode::aborted, "the transport was aborted", rank);
    for (const auto& [peer, push] : member(rank).push) pushes.push_back(push);
  }
  for (const Stream& push : pushes) {
    const auto event = stream.device().create_event();
    push.impl().record(*event);
    stream.wait(*event);
  }
}

bool StreamWorld::arrived(int rank, int peer, std::uint32_t flag) {
  const std::lock_guard lock(mutex_);
  const auto it = member(rank).flags.find({peer, flag});
  return it != member(rank).flags.end() && it->second.up;
}

bool StreamWorld::sent(int rank, int peer, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  return member(rank).lanes[lane].sent.contains(peer);
}

std::uint64_t StreamWorld::allocate(int rank, std::uint64_t bytes, void** base) {
  constexpr std::size_t alignment = 256;
  const std::uint64_t rounded = bytes / alignment * alignment + alignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0xFF, rounded);
  const std::lock_guard lock(mutex_);
  member(rank).regions.push_back({std::shared_ptr<std::byte>(memory, [](std::byte* p) { std::free(p); }), bytes});
  *base = memory;
  return member(rank).regions.size() - 1;
}

void StreamWorld::release(int rank, std::uint64_t region) {
  const std::lock_guard lock(mutex_);
  if (member(rank).busy > 0) report_violation(fmt::format("rank {} releases a region under a transfer", rank));
  member(rank).regions.at(region) = {};
}

bool StreamWorld::is_open(int rank) {
  const std::lock_guard lock(mutex_);
  return member(rank).open;
}

bool StreamWorld::is_aborted(int rank) {
  const std::lock_guard lock(mutex_);
  return member(rank).aborted;
}

void StreamWorld::abort(int rank) {
  std::unique_lock lock(mutex_);
  member(rank).aborted = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return member(rank).busy == 0; });
}

}  // namespace tandem::testing
