// SPDX-License-Identifier: Apache-2.0
#include "transports/loopback/group.hpp"

#include <algorithm>
#include <cstring>

#include "base/thread.hpp"

namespace tandem::loopback {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<GroupId, std::weak_ptr<Group>> groups;
};

Registry& registry() {
  static Registry all;
  return all;
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finisher
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

void wake_all_groups() {
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& [id, group] : registry().groups) {
      if (auto alive = group.lock()) groups.push_back(std::move(alive));
    }
  }
  for (const auto& group : groups) group->wake_all();
}

Group::Group(const GroupId& id, int size) : id_(id), members_(static_cast<std::size_t>(size)) {}

std::shared_ptr<Group> Group::join(const GroupId& id, int size, int rank, const Options& options,
                                   const plugin::Host& host) {
  const std::lock_guard registry_lock(registry().mutex);
  std::erase_if(registry().groups, [](const auto& entry) { return entry.second.expired(); });
  auto group = registry().groups[id].lock();
  if (!group) registry().groups[id] = group = std::make_shared<Group>(id, size);
  const std::lock_guard lock(group->mutex_);
  if (group->members_.size() != static_cast<std::size_t>(size))
    throw std::invalid_argument(
        fmt::format("rank {} opens a group of {}, others one of {}", rank, size, group->members_.size()));
  Member& m = group->member(rank);
  if (m.state != State::absent)
    throw std::invalid_argument(fmt::format("rank {} of this group was already opened", rank));
  m.options = options;
  m.host = host;
  m.thread = detail::start_thread([raw = group.get(), &m] { raw->run(m); });  // leave() joins it before the group goes
  m.state = State::open;
  return group;
}

tandem_status Group::test_peer(int peer) {
  const std::lock_guard lock(mutex_);
  switch (member(peer).state) {
    case State::absent:
      return TANDEM_IN_PROGRESS;
    case State::left:
      return plugin::status(ErrorCode::peer_failed);
    default:
      return TANDEM_OK;
  }
}

void Group::post(int rank, const std::vector<tandem_transfer>& transfers, tandem_completion_fn on_complete,
                 void* user) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t i = 0; i < transfers.size(); ++i) {
    const auto& t = transfers[i];
    const Posted posted{on_complete, user, i, t.buffer, t.bytes};
    if (member(rank).state != State::open) {
      complete_aborted(rank, posted);
    } else if (member(t.peer).state == State::left) {
      complete_peer_left(rank, t.peer, posted);
    } else {
      const bool send = t.direction == TANDEM_SEND;
      const Route route = send ? Route{rank, t.peer, t.tag} : Route{t.peer, rank, t.tag};
      Channel& channel = channels_[route];
      (send ? channel.sends : channel.receives).push_back(posted);
      match(route);
    }
  }
}

void Group::abort(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (member(rank).state == State::open) end(rank, State::aborted, reason);
}

void Group::leave(int rank) {
  Member& m = member(rank);
  {
    std::unique_lock lock(mutex_);
    end(rank, State::left, m.state == State::aborted ? m.abort_reason : "the transport was closed");
    moved_.wait(lock, [&] { return !is_moving(rank); });
    m.stop = true;
    m.changed.notify_one();
  }
  m.thread.join();
}

void Group::wake_all() {
  const std::lock_guard lock(mutex_);
  for (auto& m : members_) m.changed.notify_one();
}

// Every function below runs under the lock.

void Group::match(const Route& route) {
  auto found = channels_.find(route);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  while (!channel.under_way && !channel.sends.empty() && !channel.receives.empty()) {
    if (member(route.src).state != State::open || member(route.dst).state != State::open) return;
    const Posted send = channel.sends.front();
    const Posted receive = channel.receives.front();
    channel.sends.pop_front();
    channel.receives.pop_front();
    if (send.bytes != receive.bytes) {
      const auto text = fmt::format("tag {:#x}: rank {} sends {} bytes, rank {} receives {}", route.tag, route.src,
                                    send.bytes, route.dst, receive.bytes);
      complete(route.src, send, ErrorCode::invalid_usage, text);
      complete(route.dst, receive, ErrorCode::invalid_usage, text);
      continue;
    }
    Member& receiver = member(route.dst);
    auto pair = std::make_shared<Pair>();
    pair->route = route;
    pair->send = send;
    pair->receive = receive;
    receiver.waiting.emplace(Due{Clock::now() + delay(receiver, route), serial_++}, std::move(pair));
    receiver.changed.notify_one();
    channel.under_way = true;
  }
  if (!channel.under_way && channel.sends.empty() && channel.receives.empty()) channels_.erase(found);
}

/// A pair has moved, or never will: tells both sides, or puts one back whose peer aborted, for that one only knows that
/// nothing comes.
void Group::settle(Pair& pair) {
  channels_[pair.route].under_way = false;
  const bool moved = !pair.cancelled;
  for (const bool send_side : {true, false}) {
    if (moved) {
      complete(send_side ? pair.route.src : pair.route.dst, send_side ? pair.send : pair.receive, ErrorCode::ok, "");
    } else {
      settle_side(pair, send_side);
    }
  }
  match(pair.route);
}

void Group::settle_side(Pair& pair, bool send_side) {
  const int own = send_side ? pair.route.src : pair.route.dst;
  const int peer = send_side ? pair.route.dst : pair.route.src;
  const Posted& posted = send_side ? pair.send : pair.receive;
  if (member(own).state != State::open) {
    complete_aborted(own, posted);
  } else if (member(peer).state == State::left) {
    complete_peer_left(own, peer, posted);
  } else {
    Channel& channel = channels_[pair.route];
    (send_side ? channel.sends : channel.receives).push_front(posted);
  }
}

void Group::end(int rank, State state, const std::string& reason) {
  Member& m = member(rank);
  m.state = state;
  m.abort_reason = reason;
  cancel_pairs_of(rank);
  for (auto it = channels_.begin(); it != channels_.end();) {
    const Route& route = it->first;
    Channel& channel = it->second;
    if (route.src == rank || route.dst == rank) {
      auto& own = route.src == rank ? channel.sends : channel.receives;
      auto& others = route.src == rank ? channel.receives : channel.sends;
      const int peer = route.src == rank ? route.dst : route.src;
      for (const auto& posted : own) complete_aborted(rank, posted);
      own.clear();
      if (state == State::left) {
        for (const auto& posted : others) complete_peer_left(peer, rank, posted);
        others.clear();
      }
    }
    const bool empty = !channel.under_way && channel.sends.empty() && channel.receives.empty();
    it = empty ? channels_.erase(it) : std::next(it);
  }
}

void Group::cancel_pairs_of(int rank) {
  const auto involved = [rank](const Pair& pair) { return pair.route.src == rank || pair.route.dst == rank; };
  std::vector<std::shared_ptr<Pair>> dropped;
  for (auto& m : members_) {
    if (m.moving && involved(*m.moving)) m.moving->cancelled = true;  // its thread settles it
    std::erase_if(m.waiting, [&](const auto& entry) {
      if (!involved(*entry.second)) return false;
      dropped.push_back(entry.second);
      return true;
    });
    std::erase_if(m.held, [&](const auto& pair) {
      if (!involved(*pair)) return false;
      dropped.push_back(pair);
      return true;
    });
  }
  for (const auto& pair : dropped) {
    pair->cancelled = true;
    settle(*pair);
  }
}

void Group::complete(int rank, const Posted& posted, ErrorCode code, std::string message) {
  Member& m = member(rank);
  m.calls.emplace_back([posted, code, message = std::move(message)] {
    posted.on_complete(posted.user, posted.index, plugin::status(code), message.c_str());
  });
  m.changed.notify_one();
}

void Group::complete_aborted(int rank, const Posted& posted) {
  complete(rank, posted, ErrorCode::aborted, member(rank).abort_reason);
}

void Group::complete_peer_left(int rank, int peer, const Posted& posted) {
  Member& m = member(rank);
  auto reason = fmt::format("rank {} closed its transport", peer);
  if (m.failed_peers.insert(peer).second)
    m.calls.emplace_back([&m, peer, reason] { m.host.peer_failed(peer, reason); });
  complete(rank, posted, ErrorCode::peer_failed, std::move(reason));
}

Clock::duration Group::delay(const Member& receiver, const Route& route) const {
  if (receiver.options.delay_us == 0) return {};
  // A function of the route, not of when this runs, so that one seed gives the same delays run after run.
  const auto pair = static_cast<std::uint64_t>(route.src) * members_.size() + static_cast<std::uint64_t>(route.dst);
  const auto draw = mix(mix(mix(receiver.options.seed) ^ pair) ^ route.tag);
  return std::chrono::microseconds(draw % (receiver.options.delay_us + 1));
}

bool Group::is_moving(int rank) const {
  return std::any_of(members_.begin(), members_.end(), [rank](const Member& m) {
    return m.moving && (m.moving->route.src == rank || m.moving->route.dst == rank);
  });
}

void Group::run(Member& m) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (run_calls(m, lock)) continue;
    if (m.stop) return;
    requeue_released(m);
    if (m.waiting.empty()) {
      m.changed.wait(lock);
      continue;
    }
    const auto first = m.waiting.begin();
    const auto due = first->first.first;
    if (due > Clock::now()) {
      m.changed.wait_until(lock, due);
      continue;
    }
    auto pair = std::move(first->second);
    m.waiting.erase(first);
    const Route& route = pair->route;
    pair->gate = hold_at_gate({id_, route.src, route.dst, route.tag, pair->send.bytes});
    if (pair->gate) {
      m.held.push_back(std::move(pair));
    } else {
      move_bytes(m, std::move(pair), lock);
    }
  }
}

bool Group::run_calls(Member& m, std::unique_lock<std::mutex>& lock) {
  if (m.calls.empty()) return false;
  const auto calls = std::exchange(m.calls, {});
  lock.unlock();
  for (const auto& call : calls) call();
  lock.lock();
  return true;
}

void Group::move_bytes(Member& m, std::shared_ptr<Pair> pair, std::unique_lock<std::mutex>& lock) {
  constexpr std::uint64_t slice = 1U << 20;  // between slices it looks whether a side gave up
  m.moving = pair;
  lock.unlock();
  for (std::uint64_t at = 0; at < pair->send.bytes && !pair->cancelled; at += slice) {
    std::memcpy(static_cast<char*>(pair->receive.buffer) + at, static_cast<const char*>(pair->send.buffer) + at,
                std::min(slice, pair->send.bytes - at));
  }
  lock.lock();
  m.moving = nullptr;
  settle(*pair);
  moved_.notify_all();
}

void Group::requeue_released(Member& m) {
  for (auto it = m.held.begin(); it != m.held.end();) {
    if (!is_released(*(*it)->gate)) {
      ++it;
      continue;
    }
    m.waiting.emplace(Due{Clock::now(), serial_++}, std::move(*it));
    it = m.held.erase(it);
  }
}

}  // namespace tandem::loopback
