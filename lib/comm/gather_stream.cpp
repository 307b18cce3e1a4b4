// SPDX-License-Identifier: Apache-2.0
// Gathers over stream-ordered transports: everything is enqueued here and now, nothing runs on the host.
#include <fmt/format.h>

#include <set>

#include "comm/communicator_impl.hpp"
#include "comm/gather.hpp"

namespace tandem::detail {

namespace {

class StreamGather : public GatherFields {
 public:
  StreamGather(std::shared_ptr<const Prepared::Data> p, std::size_t slot_number)
      : GatherFields(p, p->gather_slots[slot_number]), slot_number_(slot_number) {}

  void add_field(CommunicatorImpl& comm, const GatherField& field) {
    bind(field, comm.rank());
    const std::size_t f = fields.size() - 1;
    Place place{prepared->streamed.gather_region[slot_number_], {}, false};
    if (!comm.one_sided()) {
      place.outlives_slot = field.destination.valid();
    } else if (!field.destination.valid()) {
      place.landed_at = prepared->streamed.landed_at[specs[f]];
    } else {
      // Elsewhere peers can write to memory of allocate() alone; the other ranks have theirs at the same offset.
      const std::size_t bytes = rows[f].row_bytes * static_cast<std::size_t>(plan.landed_rows());
      const CommunicatorImpl::SharedMemory* memory = comm.find_shared(rows[f].landed, bytes);
      if (memory == nullptr) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("gather destination '{}': peers write to it, so it has to lie in a buffer of "
                                "Communicator::allocate",
                                field.name),
                    comm.rank());
      }
      place.region = memory->region;
      place.outlives_slot = true;
      place.landed_at.assign(static_cast<std::size_t>(plan.ranks()),
                             static_cast<std::size_t>(rows[f].landed - memory->base));
    }
    places_.push_back(std::move(place));
  }

  // Fields in priority order, within each the plan's order of chunks.
  void add_items(CommunicatorImpl& comm, OpState& op, StreamOp& stream_op, const std::shared_ptr<const void>& self) {
    for (std::size_t f = 0; f < fields.size(); ++f) {
      for (std::size_t a = 0; a < plan.arrivals().size(); ++a) {
        const ChunkTransfer& t = plan.arrivals()[a];
        const std::size_t item = op.add_item(item_of(f, t, true));
        if (t.step == 0) {
          stream_op.add_own(item);
        } else {
          stream_op.add_receive(item, t.peer, flag(stream_op, f, prepared->streamed.arrivals[a]),
                                placing(comm, f, a, self), places_[f].outlives_slot);
        }
      }
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      for (const ChunkTransfer& t : plan.departures()) {
        stream_op.add_send(op.add_item(item_of(f, t, false)), t.peer);
      }
    }
  }

  void enqueue(CommunicatorImpl& comm, const OpState& op, StreamOp& stream_op, const Stream& stream,
               const std::shared_ptr<const void>& self) {
    const bool remote = comm.with_endpoint([&](Endpoint& endpoint) {
      begin(endpoint, op, stream_op, stream);
      for (std::size_t f = 0; f < fields.size(); ++f) make_dense(comm, f, stream, self);
      send(endpoint, op, stream_op, stream, self);
      endpoint.flush(stream, stream_op.lane());
    });
    if (!remote && comm.size() > 1) throw Error(ErrorCode::aborted, "the communicator is closed", comm.rank());
    std::set<int> peers;
    for (const ChunkTransfer& t : plan.departures()) peers.insert(t.peer);
    for (const int peer : peers) stream_op.all_posted(peer);
    place_own(stream, self);
  }

 private:
  /// Where a field lands: the region, and by rank the offset of its landed rows.
  struct Place {
    std::uint64_t region = 0;
    std::vector<std::size_t> landed_at;
    bool outlives_slot = false;
  };

  std::uint32_t flag(const StreamOp& stream_op, std::size_t f, const StreamLayout::Pair& pair) const {
    return stream_op.first_flag() + static_cast<std::uint32_t>(specs[f]) * pair.count + pair.index;
  }

  std::uint64_t tag(const OpState& op, std::size_t f, const ChunkTransfer& t) const {
    return Tag{static_cast<std::uint32_t>(op.sequence()), OpKind::gather, static_cast<std::uint8_t>(f),
               static_cast<std::uint32_t>(t.chunk)}
        .encode();
  }

  StreamOp::Place placing(CommunicatorImpl& comm, std::size_t f, std::size_t arrival,
                          const std::shared_ptr<const void>& self) const {
    const std::byte* const packed = staging(prepared->gather.receive, f, arrival);
    if (packed == nullptr) return comm.placing(plan.arrivals()[arrival].peer);
    const RowMove move{packed, rows[f].row_bytes, rows[f].landed, rows[f].row_bytes, rows[f].row_bytes};
    return [self, move, runs = prepared->streamed.runs(prepared->streamed.place[arrival])](const Stream& stream) {
      move_rows(stream, runs, {&move, 1}, self);
    };
  }

  void begin(Endpoint& endpoint, const OpState& op, const StreamOp& stream_op, const Stream& stream) const {
    std::vector<WireTransfer> transfers;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      for (std::size_t a = 0; a < plan.arrivals().size(); ++a) {
        const ChunkTransfer& t = plan.arrivals()[a];
        if (t.step == 0) continue;
        WireTransfer wire{t.peer, true, staging(prepared->gather.receive, f, a)};
        wire.tag = tag(op, f, t);
        wire.flag = flag(stream_op, f, prepared->streamed.arrivals[a]);
        wire.round = StreamLayout::round(f, t, prepared->streamed.arrivals[a], rows[f].row_bytes);
        if (wire.data != nullptr) {
          wire.bytes = rows[f].row_bytes * static_cast<std::size_t>(t.rows);
          transfers.push_back(wire);
          continue;
        }
        for (const Run& run : t.runs) {
          wire.data = rows[f].landed_row(run.landed_row);
          wire.bytes = rows[f].row_bytes * static_cast<std::size_t>(run.rows);
          transfers.push_back(wire);
        }
      }
    }
    endpoint.post(stream, transfers, {stream_op.lane(), true, false, false});
  }

  // Rows that lie apart are brought together first: a run travels as one piece whatever the sender's strides.
  void make_dense(CommunicatorImpl& comm, std::size_t f, const Stream& stream,
                  const std::shared_ptr<const void>& self) {
    FieldRows& r = rows[f];
    if (r.source_stride == r.row_bytes || plan.departures().empty()) return;
    void* const dense = comm.dense_memory(slot_number_, specs[f], r.row_bytes * static_cast<std::size_t>(plan.rows()));
    const RowMove move{r.source, r.source_stride, dense, r.row_bytes, r.row_bytes};
    move_rows(stream, prepared->streamed.runs(prepared->streamed.dense), {&move, 1}, self);
    r.source = static_cast<const std::byte*>(dense);
    r.source_stride = r.row_bytes;
  }

  // As few posts as may be: each costs an event. The first field's sends are the first to their peers, the last field's
  // the last, and a chunk that is packed first must not hold up those before it.
  void send(Endpoint& endpoint, const OpState& op, const StreamOp& stream_op, const Stream& stream,
            const std::shared_ptr<const void>& self) const {
    if (plan.departures().empty()) return;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const LaneUse use{stream_op.lane(), false, f == 0, f + 1 == fields.size()};
      std::vector<WireTransfer> transfers;
      for (std::size_t d = 0; d < plan.departures().size(); ++d) {
        const ChunkTransfer& t = plan.departures()[d];
        add(transfers, op, stream_op, f, d);
        if (staging(prepared->gather.send, f, d) != nullptr) pack(f, d, stream, self);
        // A step's chunks go to one peer: nothing is posted in the middle of one, so that `first` and `last` hold.
        const bool step_ends = d + 1 == plan.departures().size() || plan.departures()[d + 1].peer != t.peer;
        if (step_ends && (d + 1 == plan.departures().size() || has_packed(f, d + 1))) {
          endpoint.post(stream, transfers, use);
          transfers.clear();
        }
      }
    }
  }

  // The step that departure `first` begins has a packed chunk.
  bool has_packed(std::size_t f, std::size_t first) const {
    const std::span<const ChunkTransfer> all = plan.departures();
    for (std::size_t d = first; d < all.size() && all[d].peer == all[first].peer; ++d) {
      if (staging(prepared->gather.send, f, d) != nullptr) return true;
    }
    return false;
  }

  void add(std::vector<WireTransfer>& transfers, const OpState& op, const StreamOp& stream_op, std::size_t f,
           std::size_t d) const {
    const StreamLayout& layout = prepared->streamed;
    const ChunkTransfer& t = plan.departures()[d];
    WireTransfer wire{t.peer, false, staging(prepared->gather.send, f, d)};
    wire.tag = tag(op, f, t);
    wire.flag = flag(stream_op, f, layout.departures[d]);
    wire.round = StreamLayout::round(f, t, layout.departures[d], rows[f].row_bytes);
    if (wire.data != nullptr) {
      wire.bytes = rows[f].row_bytes * static_cast<std::size_t>(t.rows);
      wire.region = layout.gather_region[slot_number_];
      wire.offset = layout.packed_at[specs[f]][d];
      transfers.push_back(wire);
      return;
    }
    wire.region = places_[f].region;
    for (const Run& run : t.runs) {
      wire.data = const_cast<std::byte*>(rows[f].source_row(run.owner_row));
      wire.bytes = rows[f].row_bytes * static_cast<std::size_t>(run.rows);
      if (!places_[f].landed_at.empty()) {
        wire.offset = places_[f].landed_at[static_cast<std::size_t>(t.peer)] +
                      rows[f].row_bytes * static_cast<std::size_t>(run.landed_row);
      }
      transfers.push_back(wire);
    }
  }

  void pack(std::size_t f, std::size_t d, const Stream& stream, const std::shared_ptr<const void>& self) const {
    const FieldRows& r = rows[f];
    const bool in_place = r.in_place != nullptr;
    const RowMove move{in_place ? r.landed : r.source, r.source_stride, staging(prepared->gather.send, f, d),
                       r.row_bytes, r.row_bytes};
    const StreamLayout& layout = prepared->streamed;
    move_rows(stream, layout.runs((in_place ? layout.pack_landed : layout.pack)[d]), {&move, 1}, self);
  }

  // One launch for all fields, but for those whose rows the caller wrote where they land.
  void place_own(const Stream& stream, const std::shared_ptr<const void>& self) const {
    std::vector<RowMove> moves;
    for (const FieldRows& r : rows) {
      if (r.in_place != nullptr) continue;
      bool in_place = r.source_stride == r.row_bytes;
      for (const ChunkTransfer& t : plan.arrivals()) {
        if (t.step > 0) continue;
        for (const Run& run : t.runs)
          in_place = in_place && r.source_row(run.owner_row) == r.landed_row(run.landed_row);
      }
      if (!in_place) moves.push_back({r.source, r.source_stride, r.landed, r.row_bytes, r.row_bytes});
    }
    move_rows(stream, prepared->streamed.runs(prepared->streamed.own), moves, self);
  }

  const std::size_t slot_number_;
  std::vector<Place> places_;  // by field
};

}  // namespace

Work CommunicatorImpl::gather_on_stream(const std::shared_ptr<const Prepared::Data>& prepared,
                                        std::span<const GatherField> fields, const Stream& stream) {
  const auto slot = static_cast<std::size_t>(gathers_ % Prepared::slots);
  const auto task = std::make_shared<StreamGather>(prepared, slot);
  for (const GatherField& f : fields) task->add_field(*this, f);
  const std::shared_ptr<OpState> previous = gather_last_[slot].last;
  if (previous) {
    previous->poll();
    previous->stream_op()->check_capture(stream, previous->done());
  }

  const std::shared_ptr<OpState> op = make_op(OpKind::gather, task->names());
  const std::shared_ptr<StreamOp> stream_op = make_stream_op(static_cast<std::uint32_t>(slot), stream);
  op->set_stream_op(stream_op);
  task->add_items(*this, *op, *stream_op, task);
  op->set_landed(task->landed);
  op->keep(task);
  open_op(op);
  ++gathers_;
  gather_last_[slot].last = op;
  issue([&] {
    if (previous) previous->stream_op()->supersede(stream);
    task->enqueue(*this, *op, *stream_op, stream, task);
    stream_op->begun(stream);
    if (previous) previous->stream_op()->set_successor(stream_op->begin_mark());
  });
  if (stream_op->captured()) op->leave_to_graph();
  return Work(op);
}

}  // namespace tandem::detail
