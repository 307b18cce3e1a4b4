// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/communicator_impl.hpp"

namespace tandem::detail {

ReductionState::ReductionState(std::shared_ptr<OpState> op, std::shared_ptr<const Prepared::Data> prepared,
                               std::vector<ReduceField> fields, Buffer staging)
    : op_(std::move(op)), prepared_(std::move(prepared)), fields_(std::move(fields)), staging_(std::move(staging)) {
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
    auto add = [&](const ChunkTransfer& t, bool receive) {
      OpItem item;
      item.receive = receive;
      item.field = static_cast<int>(f);
      item.chunk = t.chunk;
      item.peer = t.peer;
      item.bytes = wire_bytes(f, t);
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

Tag ReductionState::tag(std::size_t field, ChunkId chunk) const {
  return {static_cast<std::uint32_t>(op_->sequence()), OpKind::reduce, static_cast<std::uint8_t>(field),
          static_cast<std::uint32_t>(chunk)};
}

const float* ReductionState::contribution_row(std::size_t field, std::int64_t landed_row) const {
  const Tensor& t = fields_[field].contributions;
  return t.data_as<const float>() + landed_row * t.stride(0);
}

std::byte* ReductionState::receive_staging(std::size_t field, std::size_t departure) const {
  return static_cast<std::byte*>(staging_.data()) + prepared_->reduce.receive[spec_index_[field]][departure].offset;
}

std::byte* ReductionState::send_staging(std::size_t field, std::size_t arrival) const {
  const Prepared::Data::Staging& s = prepared_->reduce.send[spec_index_[field]][arrival];
  return s.bytes > 0 ? static_cast<std::byte*>(staging_.data()) + s.offset : nullptr;
}

std::uint64_t ReductionState::wire_bytes(std::size_t field, const ChunkTransfer& transfer) const {
  return static_cast<std::uint64_t>(transfer.rows * spec(field).row_elements) * size_of(spec(field).wire);
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
  if (out.own) {
    own_is_final(stream);
  } else {
    send(f, it->second, stream);
  }
}

void ReductionState::submit(ChunkId chunk, const Stream& stream) {
  for (const ReduceField& field : fields_) submit(field.name, chunk, stream);
}

void ReductionState::finish(const Stream& stream) {
  op_->status().throw_if_failed();
  if (finished_) throw Error(ErrorCode::invalid_usage, fmt::format("{} is finished already", op_->describe()));
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    for (std::size_t a = 0; a < outgoing_[f].size(); ++a) {
      if (outgoing_[f][a].submitted) continue;
      throw Error(ErrorCode::invalid_usage, fmt::format("{}: chunk {} of '{}' has not been submitted", op_->describe(),
                                                        plan().arrivals()[a].chunk, fields_[f].name));
    }
  }
  finished_ = true;
  add_all(stream);
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
  if (streamed() && previous.last) {
    previous.last->poll();
    previous.last->stream_op()->check_capture(stream, previous.last->done());
  }
  const std::shared_ptr<OpState> op = make_op(OpKind::reduce, std::move(names));
  if (streamed()) op->set_stream_op(make_stream_op(static_cast<std::uint32_t>(Prepared::slots + slot), stream));
  std::vector<ReduceField> list(fields.begin(), fields.end());
  std::shared_ptr<ReductionState> state =
      streamed() ? make_stream_reduction(shared_from_this(), op, prepared, std::move(list), slot)
                 : make_host_reduction(shared_from_this(), op, prepared, std::move(list), prepared->reduce_slots[slot]);
  op->keep(state);
  open_op(op);
  ++reductions_;
  const std::shared_ptr<OpState> last = previous.last;
  reduce_last_[slot] = {op, state};
  state->begin(stream, last);
  return Reduction(state);
}

}  // namespace tandem::detail
