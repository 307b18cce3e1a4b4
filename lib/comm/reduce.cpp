// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "comm/communicator_impl.hpp"
#include "device/bf16.hpp"

namespace tandem::detail {

namespace {

const float* contribution_row(const ReduceField& f, std::int64_t landed) {
  return f.contributions.data_as<const float>() + landed * f.contributions.stride(0);
}

void to_wire(DType wire, std::byte*& to, const float* from, std::int64_t elements) {
  if (wire == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
  } else {
    auto* out = reinterpret_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < elements; ++i) out[i] = bf16_from_float(from[i]);
  }
  to += static_cast<std::size_t>(elements) * size_of(wire);
}

void add_wire(DType wire, float* sum, const std::byte*& from, std::int64_t elements) {
  if (wire == DType::f32) {
    const auto* in = reinterpret_cast<const float*>(from);
    for (std::int64_t i = 0; i < elements; ++i) sum[i] += in[i];
  } else {
    const auto* in = reinterpret_cast<const std::uint16_t*>(from);
    for (std::int64_t i = 0; i < elements; ++i) sum[i] += bf16_to_float(in[i]);
  }
  from += static_cast<std::size_t>(elements) * size_of(wire);
}

void store_row(const Tensor& result, std::int64_t row, const float* sum, std::int64_t elements) {
  auto* out = static_cast<std::byte*>(result.data()) + static_cast<std::size_t>(row) * result.row_stride_bytes();
  to_wire(result.dtype(), out, sum, elements);
}

}  // namespace

ReductionState::ReductionState(std::shared_ptr<CommunicatorImpl> comm, std::shared_ptr<OpState> op,
                               std::shared_ptr<const Prepared::Data> prepared, std::vector<ReduceField> fields,
                               Buffer staging)
    : comm_(comm),
      op_(std::move(op)),
      prepared_(std::move(prepared)),
      fields_(std::move(fields)),
      staging_(std::move(staging)) {
  const Plan& plan = prepared_->plan;
  const std::span<const Chunk> own = plan.chunks_of(plan.rank());
  departures_of_.resize(own.size());
  for (std::size_t d = 0; d < plan.departures().size(); ++d) {
    departures_of_[static_cast<std::size_t>(plan.departures()[d].chunk - own.front().id)].push_back(d);
  }
  for (std::size_t a = 0; a < plan.arrivals().size(); ++a) arrival_of_[plan.arrivals()[a].chunk] = a;

  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const auto& specs = prepared_->spec.reduce;
    std::size_t s = 0;
    while (specs[s].name != fields_[f].name) ++s;  // reduce() has checked that it is there
    spec_index_.push_back(s);
    const auto row_bytes = static_cast<std::uint64_t>(specs[s].row_elements) * size_of(specs[s].wire);
    auto add = [&](const ChunkTransfer& t, bool receive) {
      OpItem item;
      item.receive = receive;
      item.field = static_cast<int>(f);
      item.chunk = t.chunk;
      item.peer = t.peer;
      item.bytes = row_bytes * static_cast<std::uint64_t>(t.rows);
      return op_->add_item(std::move(item));
    };
    std::vector<std::size_t> incoming;
    for (const ChunkTransfer& t : plan.departures()) incoming.push_back(add(t, true));
    incoming_.push_back(std::move(incoming));
    std::vector<Outgoing> outgoing;
    for (const ChunkTransfer& t : plan.arrivals())
      outgoing.push_back({t.step == 0 ? 0 : add(t, false), t.step == 0, false});
    outgoing_.push_back(std::move(outgoing));
  }
  op_->expect_task();  // finish
}

void ReductionState::begin(const Stream& stream, const std::shared_ptr<OpState>& previous) {
  if (previous) stream.impl().wait(previous->all_done(), {});
  stream.run([this, self = shared_from_this()] {
    // The operation's deadline starts with finish(): until then this rank itself is computing.
    std::vector<WireTransfer> transfers;
    std::vector<std::size_t> items;
    const Plan& plan = prepared_->plan;
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      for (std::size_t d = 0; d < plan.departures().size(); ++d) {
        const ChunkTransfer& t = plan.departures()[d];
        const Prepared::Data::Staging& s = prepared_->reduce.receive[spec_index_[f]][d];
        const Tag tag{static_cast<std::uint32_t>(op_->sequence()), OpKind::reduce, static_cast<std::uint8_t>(f),
                      static_cast<std::uint32_t>(t.chunk)};
        transfers.push_back({t.peer, true, static_cast<std::byte*>(staging_.data()) + s.offset, s.bytes, tag.encode()});
        items.push_back(incoming_[f][d]);
      }
    }
    if (const auto impl = comm_.lock()) impl->post(op_, transfers, std::move(items));
  });
}

void ReductionState::submit(std::string_view field, ChunkId chunk, const Stream& stream) {
  op_->status().throw_if_failed();
  if (finished_) throw Error(ErrorCode::invalid_usage, fmt::format("{}: submit after finish", op_->describe()));
  std::size_t f = 0;
  while (f < fields_.size() && fields_[f].name != field) ++f;
  if (f == fields_.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has no field '{}'", op_->describe(), field));
  const auto it = arrival_of_.find(chunk);
  if (it == arrival_of_.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: this rank contributes nothing to chunk {}", op_->describe(), chunk));
  }
  Outgoing& out = outgoing_[f][it->second];
  if (out.submitted) {
    throw Error(ErrorCode::invalid_usage,
                fmt::format("{}: chunk {} of '{}' is submitted twice", op_->describe(), chunk, field));
  }
  out.submitted = true;
  if (out.own) return;
  stream.run([this, self = shared_from_this(), f, a = it->second] { send(f, a); });
}

void ReductionState::submit(ChunkId chunk, const Stream& stream) {
  for (const ReduceField& field : fields_) submit(field.name, chunk, stream);
}

void ReductionState::send(std::size_t f, std::size_t a) {
  const ReduceField& field = fields_[f];
  const FieldSpec& spec = prepared_->spec.reduce[spec_index_[f]];
  const ChunkTransfer& t = prepared_->plan.arrivals()[a];
  const Prepared::Data::Staging& s = prepared_->reduce.send[spec_index_[f]][a];
  const Tag tag{static_cast<std::uint32_t>(op_->sequence()), OpKind::reduce, static_cast<std::uint8_t>(f),
                static_cast<std::uint32_t>(t.chunk)};
  // The owner takes one block of rows; where they lie in one piece here they leave without a copy.
  const void* data = nullptr;
  std::uint64_t bytes = static_cast<std::uint64_t>(t.rows * spec.row_elements) * size_of(spec.wire);
  if (s.bytes == 0) {
    data = contribution_row(field, t.runs.front().landed_row);
  } else {
    auto* block = static_cast<std::byte*>(staging_.data()) + s.offset;
    data = block;
    for (const Run& run : t.runs) {
      for (std::int64_t i = 0; i < run.rows; ++i) {
        to_wire(spec.wire, block, contribution_row(field, run.landed_row + i), spec.row_elements);
      }
    }
  }
  const WireTransfer transfer{t.peer, false, const_cast<void*>(data), bytes, tag.encode()};
  if (const auto impl = comm_.lock()) impl->post(op_, {&transfer, 1}, {outgoing_[f][a].item});
}

void ReductionState::finish(const Stream& stream) {
  op_->status().throw_if_failed();
  if (finished_) throw Error(ErrorCode::invalid_usage, fmt::format("{} is finished already", op_->describe()));
  const Plan& plan = prepared_->plan;
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    for (std::size_t a = 0; a < outgoing_[f].size(); ++a) {
      if (outgoing_[f][a].submitted) continue;
      throw Error(ErrorCode::invalid_usage, fmt::format("{}: chunk {} of '{}' has not been submitted", op_->describe(),
                                                        plan.arrivals()[a].chunk, fields_[f].name));
    }
  }
  finished_ = true;
  stream.run([op = op_] { op->start(); });
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    for (const Chunk& chunk : plan.chunks_of(plan.rank())) {
      const auto& departures =
          departures_of_[static_cast<std::size_t>(chunk.id - plan.chunks_of(plan.rank()).front().id)];
      for (const std::size_t d : departures) op_->wait_item(stream, incoming_[f][d]);
      stream.run([this, self = shared_from_this(), f, id = chunk.id] {
        if (op_->status().ok()) add_chunk(f, id);
      });
    }
  }
  stream.run([op = op_] { op->task_done(); });
}

void ReductionState::add_chunk(std::size_t f, ChunkId id) const {
  const Plan& plan = prepared_->plan;
  const Chunk& chunk = plan.chunks()[static_cast<std::size_t>(id)];
  const FieldSpec& spec = prepared_->spec.reduce[spec_index_[f]];
  const std::int64_t n = spec.row_elements;
  std::vector<float> sum(static_cast<std::size_t>(chunk.rows * n), 0.0F);
  auto row = [&](std::int64_t owner_row) { return sum.data() + (owner_row - chunk.first_row) * n; };
  for (const std::size_t d : departures_of_[static_cast<std::size_t>(id - plan.chunks_of(plan.rank()).front().id)]) {
    const std::byte* from =
        static_cast<const std::byte*>(staging_.data()) + prepared_->reduce.receive[spec_index_[f]][d].offset;
    for (const Run& run : plan.departures()[d].runs) add_wire(spec.wire, row(run.owner_row), from, run.rows * n);
  }
  if (const ChunkTransfer* own = plan.arrival(id)) {
    for (const Run& run : own->runs) {
      for (std::int64_t i = 0; i < run.rows; ++i) {
        const float* mine = contribution_row(fields_[f], run.landed_row + i);
        float* to = row(run.owner_row + i);
        for (std::int64_t e = 0; e < n; ++e) to[e] += mine[e];
      }
    }
  }
  for (std::int64_t i = 0; i < chunk.rows; ++i)
    store_row(fields_[f].result, chunk.first_row + i, sum.data() + i * n, n);
}

Reduction CommunicatorImpl::reduce(const Plan& plan, std::span<const ReduceField> fields, const Stream& stream) {
  check_usable();
  std::shared_ptr<const Prepared::Data> prepared = find_prepared(plan);
  std::vector<std::string> names;
  for (const ReduceField& f : fields) {
    const auto& specs = prepared->spec.reduce;
    const auto spec = std::find_if(specs.begin(), specs.end(), [&](const FieldSpec& s) { return s.name == f.name; });
    if (spec == specs.end())
      throw Error(ErrorCode::invalid_usage, fmt::format("reduce field '{}' was not prepared", f.name), rank());
    check_rows(f.contributions, DType::f32, plan.landed_rows(), spec->row_elements,
               fmt::format("reduce contributions '{}'", f.name));
    check_adjacent_rows(f.contributions, fmt::format("reduce contributions '{}'", f.name));
    const DType result = f.result.valid() && f.result.dtype() == DType::bf16 ? DType::bf16 : DType::f32;
    check_rows(f.result, result, plan.rows(), spec->row_elements, fmt::format("reduce result '{}'", f.name));
    names.push_back(f.name);
  }
  const auto slot = static_cast<std::size_t>(reductions_ % Prepared::slots);
  const Slot& previous = reduce_last_[slot];
  if (previous.reduction && !previous.reduction->finished() && previous.last->status().ok()) {
    throw Error(ErrorCode::invalid_usage,
                fmt::format("{} uses the same staging and is not finished", previous.last->describe()), rank());
  }
  const std::shared_ptr<OpState> op = make_op(OpKind::reduce, std::move(names));
  auto state = std::make_shared<ReductionState>(shared_from_this(), op, prepared,
                                                std::vector<ReduceField>(fields.begin(), fields.end()),
                                                prepared->reduce_slots[slot]);
  op->keep(state);
  open_op(op);
  ++reductions_;
  const std::shared_ptr<OpState> last = previous.last;
  reduce_last_[slot] = {op, state};
  state->begin(stream, last);
  return Reduction(state);
}

}  // namespace tandem::detail
