// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>
#include <set>

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

/// Gives each transfer its item: the n-th send to a peer matches its n-th receive from here, and the number is the
/// chunk in tags and messages.
std::vector<std::size_t> add_items(OpState& op, std::span<const Transfer> transfers) {
  std::map<std::pair<int, bool>, ChunkId> count;
  std::vector<std::size_t> items;
  for (const Transfer& t : transfers) {
    OpItem item;
    item.receive = t.direction == Transfer::Direction::receive;
    item.chunk = count[{t.peer, item.receive}]++;
    item.peer = t.peer;
    item.bytes = t.bytes;
    items.push_back(op.add_item(std::move(item)));
  }
  return items;
}

WireTransfer on_wire(const Transfer& t, const OpState& op, std::size_t item) {
  const auto number = static_cast<std::uint32_t>(const_cast<OpState&>(op).item(item).chunk);
  const Tag tag{static_cast<std::uint32_t>(op.sequence()), OpKind::exchange, 0, number};
  return {t.peer, t.direction == Transfer::Direction::receive, t.data, t.bytes, tag.encode()};
}

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
  for (std::size_t i = 0; i < transfers.size(); ++i) check_transfer(transfers[i], i, size(), rank());
  return streamed() ? exchange_on_stream(transfers, stream) : exchange_by_host(transfers, stream);
}

Work CommunicatorImpl::exchange_by_host(std::span<const Transfer> transfers, const Stream& stream) {
  std::vector<SelfCopy> copies = match_own(transfers, rank());
  const std::shared_ptr<OpState> op = make_op(OpKind::exchange, {"data"});
  const std::vector<std::size_t> item_of = add_items(*op, transfers);
  std::vector<WireTransfer> wire;
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].peer == rank()) continue;
    wire.push_back(on_wire(transfers[i], *op, item_of[i]));
    items.push_back(item_of[i]);
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

Work CommunicatorImpl::exchange_on_stream(std::span<const Transfer> transfers, const Stream& stream) {
  const std::vector<SelfCopy> copies = match_own(transfers, rank());
  const auto lane = static_cast<std::uint32_t>(exchanges_ % StreamLayout::exchange_lanes);
  const std::shared_ptr<OpState> previous = exchange_last_[lane];
  if (previous) {
    previous->poll();
    previous->stream_op()->check_capture(stream, previous->done());
  }
  const std::shared_ptr<OpState> op = make_op(OpKind::exchange, {"data"});
  const std::shared_ptr<StreamOp> stream_op = make_stream_op(StreamLayout::first_exchange_lane + lane, stream);
  op->set_stream_op(stream_op);
  const std::vector<std::size_t> item_of = add_items(*op, transfers);
  std::vector<WireTransfer> receives, sends;
  std::set<int> receivers;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.peer == rank()) {
      stream_op->add_own(item_of[i]);
      continue;
    }
    WireTransfer wire = on_wire(t, *op, item_of[i]);
    const auto number = static_cast<std::uint32_t>(op->item(item_of[i]).chunk);
    if (number >= flags_of_a_lane()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("transfer {}: more than {} in one exchange with rank {}", i, flags_of_a_lane(), t.peer),
                  rank());
    }
    wire.flag = stream_op->first_flag() + number;
    if (one_sided()) find_place(t, i, wire);
    if (wire.receive) {
      stream_op->add_receive(item_of[i], t.peer, wire.flag, placing(t.peer), true);
      receives.push_back(wire);
    } else {
      stream_op->add_send(item_of[i], t.peer);
      receivers.insert(t.peer);
      sends.push_back(wire);
    }
  }
  open_op(op);
  ++exchanges_;
  exchange_last_[lane] = op;
  issue([&] {
    if (previous) previous->stream_op()->supersede(stream);
    with_endpoint([&](Endpoint& endpoint) {
      endpoint.post(stream, receives, {stream_op->lane(), true, false, false});
      if (!sends.empty()) endpoint.post(stream, sends, {stream_op->lane(), false, true, true});
      endpoint.flush(stream, stream_op->lane());
    });
    for (const int peer : receivers) stream_op->all_posted(peer);
    for (const SelfCopy& c : copies) {
      if (c.bytes > 0 && c.to != c.from) stream.copy(c.to, c.from, static_cast<std::size_t>(c.bytes));
    }
    stream_op->begun(stream);
    if (previous) previous->stream_op()->set_successor(stream_op->begin_mark());
  });
  if (stream_op->captured()) op->leave_to_graph();
  return Work(op);
}

void CommunicatorImpl::find_place(const Transfer& t, std::size_t index, WireTransfer& wire) const {
  const bool receive = t.direction == Transfer::Direction::receive;
  const void* const at = receive ? t.data : t.destination;
  const SharedMemory* const memory = t.bytes > 0 ? find_shared(at, static_cast<std::size_t>(t.bytes)) : nullptr;
  if (memory != nullptr) {
    wire.region = memory->region;
    wire.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - memory->base);
  } else if (t.bytes > 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("transfer {}: peers write to it, so {} has to lie in a buffer of Communicator::allocate",
                            index, receive ? "what is received" : "the destination of a send"),
                rank());
  }
}

}  // namespace tandem::detail
