// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>

#include "comm/communicator_impl.hpp"

namespace tandem::detail {

namespace {

void check_transfer(const Transfer& t, std::size_t index, int size, int rank) {
  if (t.peer < 0 || t.peer >= size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("transfer {}: peer {}; the group has ranks 0 to {}", index, t.peer, size - 1), rank);
  }
  if (t.data == nullptr && t.bytes > 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("transfer {}: no data for {} bytes", index, t.bytes), rank);
  }
}

/// Sends to the rank itself are copies; they match its receives from itself in order.
struct SelfCopy {
  const void* from;
  void* to;
  std::uint64_t bytes;
  std::size_t send, receive;
};

std::vector<SelfCopy> match_own(std::span<const Transfer> transfers, int rank) {
  std::deque<std::size_t> sends, receives;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].peer == rank)
      (transfers[i].direction == Transfer::Direction::send ? sends : receives).push_back(i);
  }
  if (sends.size() != receives.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} sends to the rank itself, {} receives from it", sends.size(), receives.size()), rank);
  }
  std::vector<SelfCopy> copies;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Transfer& s = transfers[sends[i]];
    const Transfer& r = transfers[receives[i]];
    if (s.bytes != r.bytes) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("transfers {} and {}: {} bytes sent, {} received", sends[i], receives[i], s.bytes, r.bytes),
          rank);
    }
    copies.push_back({s.data, r.data, s.bytes, sends[i], receives[i]});
  }
  return copies;
}

}  // namespace

Work CommunicatorImpl::exchange(std::span<const Transfer> transfers, const Stream& stream) {
  check_usable();
  if (streamed()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("exchange is not there yet for stream-ordered transports: route {}", options_.transport),
                rank());
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) check_transfer(transfers[i], i, size(), rank());
  std::vector<SelfCopy> copies = match_own(transfers, rank());

  const std::shared_ptr<OpState> op = make_op(OpKind::exchange, {"data"});
  std::vector<WireTransfer> wire;
  std::vector<std::size_t> items;
  // The n-th send to a peer matches its n-th receive from here: the number is the chunk in tags and messages.
  std::map<std::pair<int, bool>, std::uint32_t> count;
  std::vector<std::size_t> item_of;
  for (const Transfer& t : transfers) {
    const bool receive = t.direction == Transfer::Direction::receive;
    const std::uint32_t number = count[{t.peer, receive}]++;
    OpItem item;
    item.receive = receive;
    item.chunk = static_cast<ChunkId>(number);
    item.peer = t.peer;
    item.bytes = t.bytes;
    item_of.push_back(op->add_item(std::move(item)));
    if (t.peer == rank()) continue;
    const Tag tag{static_cast<std::uint32_t>(op->sequence()), OpKind::exchange, 0, number};
    wire.push_back({t.peer, receive, t.data, t.bytes, tag.encode()});
    items.push_back(item_of.back());
  }
  for (SelfCopy& c : copies) {
    c.send = item_of[c.send];
    c.receive = item_of[c.receive];
  }
  op->expect_task();
  open_op(op);
  stream.run(
      [op, comm = weak_from_this(), wire = std::move(wire), items = std::move(items), copies = std::move(copies)] {
        if (!op->start()) return;
        if (const auto impl = comm.lock()) impl->post(op, wire, items);
        for (const SelfCopy& c : copies) {
          if (c.bytes > 0) std::memmove(c.to, c.from, static_cast<std::size_t>(c.bytes));
          op->local_done(c.send);
          op->local_done(c.receive);
        }
        op->task_done();
      });
  return Work(op);
}

}  // namespace tandem::detail
