// SPDX-License-Identifier: Apache-2.0
// Reductions over stream-ordered transports.
#include <map>
#include <set>

#include "comm/communicator_impl.hpp"
#include "comm/reduce.hpp"

namespace tandem::detail {

namespace {

class StreamReduction final : public ReductionState {
 public:
  StreamReduction(const std::shared_ptr<CommunicatorImpl>& comm, const std::shared_ptr<OpState>& op,
                  std::shared_ptr<const Prepared::Data> prepared, std::vector<ReduceField> fields, std::size_t slot)
      : ReductionState(op, prepared, std::move(fields), prepared->reduce_slots[slot]), comm_(comm), slot_(slot) {
    StreamOp& s = stream_op();
    s.expect_finish();
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      for (std::size_t d = 0; d < plan().departures().size(); ++d) {
        const int peer = plan().departures()[d].peer;
        s.add_receive(incoming_[f][d], peer, flag(f, prepared_->streamed.departures[d]), comm->placing(peer));
      }
      for (std::size_t a = 0; a < plan().arrivals().size(); ++a) {
        const ChunkTransfer& t = plan().arrivals()[a];
        if (t.step == 0) continue;
        s.add_send(outgoing_[f][a].item, t.peer);
        ++to_come_[t.peer];
      }
    }
  }

  void begin(const Stream& stream, const std::shared_ptr<OpState>& previous) override {
    comm()->issue([&] {
      if (previous) previous->stream_op()->supersede(stream);
      std::vector<WireTransfer> transfers;
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        for (std::size_t d = 0; d < plan().departures().size(); ++d) {
          const ChunkTransfer& t = plan().departures()[d];
          WireTransfer wire{t.peer, true, receive_staging(f, d), wire_bytes(f, t), tag(f, t.chunk).encode()};
          wire.flag = flag(f, prepared_->streamed.departures[d]);
          wire.round = round(f, t, prepared_->streamed.departures[d]);
          transfers.push_back(wire);
        }
      }
      comm()->with_endpoint([&](Endpoint& endpoint) {
        endpoint.post(stream, transfers, {stream_op().lane(), true, false, false});
      });
      stream_op().begun(stream);
      if (previous) previous->stream_op()->set_successor(stream_op().begin_mark());
    });
    if (stream_op().captured()) op_->leave_to_graph();
  }

 private:
  StreamOp& stream_op() const { return *op_->stream_op(); }
  std::uint32_t flag(std::size_t f, const StreamLayout::Pair& pair) const {
    return stream_op().first_flag() + static_cast<std::uint32_t>(spec_index_[f]) * pair.count + pair.index;
  }
  std::uint64_t round(std::size_t f, const ChunkTransfer& t, const StreamLayout::Pair& pair) const {
    const std::size_t row_bytes = static_cast<std::size_t>(spec(f).row_elements) * size_of(spec(f).wire);
    return StreamLayout::round(f, t, pair, row_bytes);
  }
  std::shared_ptr<CommunicatorImpl> comm() const {
    auto comm = comm_.lock();
    if (!comm) throw Error(ErrorCode::invalid_usage, "the communicator of this reduction is gone");
    return comm;
  }
  std::shared_ptr<const void> self() { return shared_from_this(); }

  void send(std::size_t f, std::size_t a, const Stream& stream) override {
    const ChunkTransfer& t = plan().arrivals()[a];
    const StreamLayout& layout = prepared_->streamed;
    WireTransfer wire{t.peer, false, send_staging(f, a), wire_bytes(f, t), tag(f, t.chunk).encode()};
    wire.round = round(f, t, layout.arrivals[a]);
    wire.region = layout.reduce_region[slot_];
    wire.offset = layout.contribution_at[spec_index_[f]][a];
    wire.flag = flag(f, layout.arrivals[a]);
    LaneUse use{stream_op().lane(), false, begun_.insert(t.peer).second, false};
    use.last = --to_come_[t.peer] == 0;
    comm()->issue([&] {
      stream_op().follow(stream);
      if (wire.data == nullptr) {
        wire.data = const_cast<float*>(contribution_row(f, t.runs.front().landed_row));
      } else {
        pack(f, a, wire.data, stream);
      }
      op_->posted(outgoing_[f][a].item);
      comm()->with_endpoint([&](Endpoint& endpoint) { endpoint.post(stream, {&wire, 1}, use); });
      if (use.last) stream_op().all_posted(t.peer);
    });
  }

  void pack(std::size_t f, std::size_t a, void* block, const Stream& stream) {
    const Tensor& from = fields_[f].contributions;
    const RowRuns runs = prepared_->streamed.runs(prepared_->streamed.contribute[a]);
    if (spec(f).wire == DType::f32) {
      const RowMove move{from.data(), from.row_stride_bytes(), block, from.row_bytes(), from.row_bytes()};
      move_rows(stream, runs, {&move, 1}, self());
    } else {
      round_rows(stream, runs,
                 {from.data_as<const float>(), from.row_stride_bytes(), static_cast<std::uint16_t*>(block),
                  spec(f).row_elements},
                 self());
    }
  }

  void own_is_final(const Stream& stream) override {
    // Streams differ rarely; finish() comes after all of them.
    own_on_.try_emplace(stream.impl().id(), stream);
  }

  void add_all(const Stream& stream) override {
    comm()->issue([&] {
      stream_op().follow(stream);
      for (const auto& [id, other] : own_on_) {
        if (id == stream.impl().id()) continue;
        const Event event = other.device().create_event();
        other.record(event);
        stream.wait(event);
      }
      own_on_.clear();
      comm()->with_endpoint([&](Endpoint& endpoint) { endpoint.flush(stream, stream_op().lane()); });
      stream_op().finishing(stream);
      const std::span<const Chunk> own = plan().chunks_of(plan().rank());
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        for (std::size_t c = 0; c < own.size(); ++c) {
          for (const std::size_t d : departures_of_[c]) op_->wait_item(stream, incoming_[f][d]);
          add_chunk(f, c, stream);
        }
      }
      stream_op().finished(stream);
    });
  }

  void add_chunk(std::size_t f, std::size_t c, const Stream& stream) {
    const StreamLayout& layout = prepared_->streamed;
    const StreamLayout::Sum& parts = layout.sums[spec_index_[f]][c];
    const Chunk& chunk = plan().chunks_of(plan().rank())[c];
    const Tensor& own = fields_[f].contributions;
    const Tensor& result = fields_[f].result;
    RowSum sum;
    sum.runs = layout.runs({}).runs;
    sum.addends = layout.addends() + parts.first_addend;
    sum.addend_count = parts.addends;
    sum.staging = staging_.data();
    sum.wire = spec(f).wire;
    sum.own_runs = layout.runs(parts.own);
    sum.own = own.data_as<const float>();
    sum.own_stride = own.row_stride_bytes();
    sum.result = result.data();
    sum.result_type = result.dtype();
    sum.result_stride = result.row_stride_bytes();
    sum.first_row = chunk.first_row;
    sum.rows = chunk.rows;
    sum.elements = spec(f).row_elements;
    sum_rows(stream, sum, self());
  }

  const std::weak_ptr<CommunicatorImpl> comm_;
  const std::size_t slot_;
  std::map<int, std::size_t> to_come_;  // sends that have not been posted, by peer
  std::set<int> begun_;                 // peers that have been sent something
  std::map<std::uint64_t, Stream> own_on_;
};

}  // namespace

std::shared_ptr<ReductionState> make_stream_reduction(std::shared_ptr<CommunicatorImpl> comm,
                                                      std::shared_ptr<OpState> op,
                                                      std::shared_ptr<const Prepared::Data> prepared,
                                                      std::vector<ReduceField> fields, std::size_t slot) {
  return std::make_shared<StreamReduction>(comm, op, std::move(prepared), std::move(fields), slot);
}

}  // namespace tandem::detail
