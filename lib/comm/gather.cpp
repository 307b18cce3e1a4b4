// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "comm/communicator_impl.hpp"

namespace tandem::detail {

namespace {

/// Rows of one field on this rank: where local rows are read and landed rows are written.
struct FieldRows {
  const std::byte* source = nullptr;
  std::size_t source_stride = 0;
  std::byte* landed = nullptr;
  std::size_t landed_stride = 0;
  std::size_t row_bytes = 0;

  const std::byte* source_row(std::int64_t i) const { return source + static_cast<std::size_t>(i) * source_stride; }
  std::byte* landed_row(std::int64_t i) const { return landed + static_cast<std::size_t>(i) * landed_stride; }
};

void copy_rows(std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride,
               std::size_t row_bytes, std::int64_t rows) {
  if (to == from || rows == 0) return;  // the caller wrote its rows where they land
  if (to_stride == row_bytes && from_stride == row_bytes) {
    std::memcpy(to, from, row_bytes * static_cast<std::size_t>(rows));
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<std::size_t>(i) * to_stride, from + static_cast<std::size_t>(i) * from_stride,
                row_bytes);
  }
}

/// One gather as its stream task needs it: everything it touches is kept alive by it.
struct GatherTask {
  std::shared_ptr<OpState> op;
  std::weak_ptr<CommunicatorImpl> comm;
  Plan plan;
  Buffer slot;
  std::vector<GatherField> fields;
  std::vector<FieldRows> rows;
  struct Piece {
    std::size_t field = 0;
    const ChunkTransfer* transfer = nullptr;
    std::size_t item = 0;
    std::byte* staging = nullptr;  // packed transfers
  };
  std::vector<Piece> own, receives, sends;

  void run() const {
    if (!op->start()) return;
    post();
    for (const Piece& p : own) {
      const FieldRows& f = rows[p.field];
      for (const Run& run : p.transfer->runs) {
        copy_rows(f.landed_row(run.landed_row), f.landed_stride, f.source_row(run.owner_row), f.source_stride,
                  f.row_bytes, run.rows);
      }
      op->local_done(p.item);
    }
    op->task_done();
  }

  void post() const {
    std::vector<WireTransfer> transfers;
    std::vector<std::size_t> items;
    auto add = [&](const Piece& p, bool receive, void* data, std::uint64_t bytes) {
      const auto tag = Tag{static_cast<std::uint32_t>(op->sequence()), OpKind::gather,
                           static_cast<std::uint8_t>(p.field), static_cast<std::uint32_t>(p.transfer->chunk)};
      transfers.push_back({p.transfer->peer, receive, data, bytes, tag.encode()});
      items.push_back(p.item);
    };
    // Receives before sends: peers may start as soon as they hear that their rows are awaited.
    for (const Piece& p : receives) add_runs(p, true, add);
    for (const Piece& p : sends) {
      if (p.staging != nullptr) pack(p);
      add_runs(p, false, add);
    }
    if (const auto impl = comm.lock()) impl->post(op, transfers, std::move(items));
  }

  template <class Add>
  void add_runs(const Piece& p, bool receive, const Add& add) const {
    const FieldRows& f = rows[p.field];
    if (p.staging != nullptr) {
      add(p, receive, p.staging, f.row_bytes * static_cast<std::size_t>(p.transfer->rows));
      return;
    }
    const std::size_t stride = receive ? f.landed_stride : f.source_stride;
    for (const Run& run : p.transfer->runs) {
      // Rows that lie apart travel one by one.
      const std::int64_t step = stride == f.row_bytes ? run.rows : 1;
      for (std::int64_t i = 0; i < run.rows; i += step) {
        void* data =
            receive ? f.landed_row(run.landed_row + i) : const_cast<std::byte*>(f.source_row(run.owner_row + i));
        add(p, receive, data, f.row_bytes * static_cast<std::size_t>(step));
      }
    }
  }

  void pack(const Piece& p) const {
    const FieldRows& f = rows[p.field];
    std::byte* to = p.staging;
    for (const Run& run : p.transfer->runs) {
      copy_rows(to, f.row_bytes, f.source_row(run.owner_row), f.source_stride, f.row_bytes, run.rows);
      to += f.row_bytes * static_cast<std::size_t>(run.rows);
    }
  }

  static void unpack(const FieldRows& f, const ChunkTransfer& transfer, const std::byte* staging) {
    for (const Run& run : transfer.runs) {
      copy_rows(f.landed_row(run.landed_row), f.landed_stride, staging, f.row_bytes, f.row_bytes, run.rows);
      staging += f.row_bytes * static_cast<std::size_t>(run.rows);
    }
  }
};

std::size_t spec_of(const Prepared::Data& prepared, const std::string& name, int rank) {
  const auto& gather = prepared.gather.gather;
  for (std::size_t i = 0; i < gather.size(); ++i) {
    if (gather[i].spec.name == name) return i;
  }
  throw Error(ErrorCode::invalid_usage, fmt::format("gather field '{}' was not prepared", name), rank);
}

}  // namespace

Work CommunicatorImpl::gather(const Plan& plan, std::span<const GatherField> fields, const Stream& stream) {
  check_usable();
  const std::shared_ptr<const Prepared::Data> prepared = find_prepared(plan);
  std::vector<std::string> names;
  for (const GatherField& f : fields) names.push_back(f.name);
  const auto slot_index = static_cast<std::size_t>(gathers_ % Prepared::slots);

  auto task = std::make_shared<GatherTask>(GatherTask{nullptr,
                                                      weak_from_this(),
                                                      plan,
                                                      prepared->gather_slots[slot_index],
                                                      {fields.begin(), fields.end()},
                                                      {},
                                                      {},
                                                      {},
                                                      {}});
  auto* slot = static_cast<std::byte*>(task->slot.data());
  std::vector<std::size_t> specs;
  std::vector<Tensor> landed;
  for (const GatherField& field : fields) {
    const std::size_t s = spec_of(*prepared, field.name, rank());
    const Prepared::Data::GatherSlot& spec = prepared->gather.gather[s];
    check_rows(field.source, spec.spec.dtype, plan.rows(), spec.spec.row_elements,
               fmt::format("gather source '{}'", field.name));
    Tensor to = field.destination;
    if (to.valid()) {
      check_rows(to, spec.spec.dtype, plan.landed_rows(), spec.spec.row_elements,
                 fmt::format("gather destination '{}'", field.name));
    } else {
      to = Tensor::view(task->slot, spec.landed, spec.spec.dtype, {plan.landed_rows(), spec.spec.row_elements});
    }
    task->rows.push_back({static_cast<const std::byte*>(field.source.data()), field.source.row_stride_bytes(),
                          static_cast<std::byte*>(to.data()), to.row_stride_bytes(), field.source.row_bytes()});
    specs.push_back(s);
    landed.push_back(std::move(to));
  }

  const std::shared_ptr<OpState> op = make_op(OpKind::gather, std::move(names));
  task->op = op;
  auto staging = [&](const std::vector<std::vector<Prepared::Data::Staging>>& all, std::size_t field,
                     std::size_t transfer) {
    const Prepared::Data::Staging& s = all[specs[field]][transfer];
    return s.bytes > 0 ? slot + s.offset : nullptr;
  };
  for (std::size_t f = 0; f < fields.size(); ++f) {
    for (std::size_t a = 0; a < plan.arrivals().size(); ++a) {
      const ChunkTransfer& t = plan.arrivals()[a];
      OpItem item;
      item.field = static_cast<int>(f);
      item.chunk = t.chunk;
      item.peer = t.step == 0 ? rank() : t.peer;
      item.bytes = task->rows[f].row_bytes * static_cast<std::size_t>(t.rows);
      std::byte* packed = staging(prepared->gather.receive, f, a);
      if (packed != nullptr) {
        // Keeps the memory it writes to, for the caller may give up after a failure.
        item.on_arrival = [rows = task->rows[f], &t, packed, plan, slot = task->slot, to = landed[f]] {
          GatherTask::unpack(rows, t, packed);
        };
      }
      (t.step == 0 ? task->own : task->receives).push_back({f, &t, op->add_item(std::move(item)), packed});
    }
  }
  for (std::size_t f = 0; f < fields.size(); ++f) {
    for (std::size_t d = 0; d < plan.departures().size(); ++d) {
      const ChunkTransfer& t = plan.departures()[d];
      OpItem item;
      item.receive = false;
      item.field = static_cast<int>(f);
      item.chunk = t.chunk;
      item.peer = t.peer;
      item.bytes = task->rows[f].row_bytes * static_cast<std::size_t>(t.rows);
      task->sends.push_back({f, &t, op->add_item(std::move(item)), staging(prepared->gather.send, f, d)});
    }
  }
  op->expect_task();
  op->set_landed(std::move(landed));
  op->keep(task);
  open_op(op);
  ++gathers_;
  if (const auto& previous = gather_last_[slot_index].last) stream.impl().wait(previous->all_done(), {});
  gather_last_[slot_index].last = op;
  stream.run([task] { task->run(); });
  return Work(op);
}

}  // namespace tandem::detail
