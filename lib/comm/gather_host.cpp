// SPDX-License-Identifier: Apache-2.0
// Gathers over host-driven transports: a task on the stream posts, the transport reports.
#include <cstring>

#include "comm/communicator_impl.hpp"
#include "comm/gather.hpp"

namespace tandem::detail {

namespace {

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
struct GatherTask : GatherFields {
  std::weak_ptr<CommunicatorImpl> comm;
  std::shared_ptr<OpState> op;
  struct Piece {
    std::size_t field = 0;
    const ChunkTransfer* transfer = nullptr;
    std::size_t item = 0;
    std::byte* staging = nullptr;  // packed transfers
  };
  std::vector<Piece> own, receives, sends;
  std::vector<std::vector<std::byte>> dense;

  GatherTask(std::weak_ptr<CommunicatorImpl> c, std::shared_ptr<const Prepared::Data> p, Buffer s)
      : GatherFields(std::move(p), std::move(s)), comm(std::move(c)) {}

  // Fields in priority order, within each the plan's order of chunks.
  void add_items(const std::shared_ptr<OpState>& o) {
    op = o;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      for (std::size_t a = 0; a < plan.arrivals().size(); ++a) {
        const ChunkTransfer& t = plan.arrivals()[a];
        OpItem item = item_of(f, t, true);
        std::byte* const packed = staging(prepared->gather.receive, f, a);
        if (packed != nullptr) {
          // Holds the memory it writes to, for the caller may give up after a failure.
          item.on_arrival = [r = rows[f], &t, packed, keep = plan, from = slot, to = landed[f]] {
            unpack(r, t, packed);
          };
        }
        (t.step == 0 ? own : receives).push_back({f, &t, op->add_item(std::move(item)), packed});
      }
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      for (std::size_t d = 0; d < plan.departures().size(); ++d) {
        const ChunkTransfer& t = plan.departures()[d];
        sends.push_back({f, &t, op->add_item(item_of(f, t, false)), staging(prepared->gather.send, f, d)});
      }
    }
  }

  void run() {
    if (!op->start()) return;
    for (FieldRows& f : rows) make_dense(f);
    post();
    for (const Piece& p : own) {
      const FieldRows& f = rows[p.field];
      for (const Run& run : p.transfer->runs) {
        copy_rows(f.landed_row(run.landed_row), f.row_bytes, f.source_row(run.owner_row), f.source_stride, f.row_bytes,
                  run.rows);
      }
      op->local_done(p.item);
    }
    op->task_done();
  }

  // Rows that lie apart are brought together first: a run travels as one piece whatever the sender's strides.
  void make_dense(FieldRows& f) {
    if (f.source_stride == f.row_bytes || sends.empty()) return;
    const std::int64_t count = plan.rows();
    dense.emplace_back(f.row_bytes * static_cast<std::size_t>(count));
    copy_rows(dense.back().data(), f.row_bytes, f.source, f.source_stride, f.row_bytes, count);
    f.source = dense.back().data();
    f.source_stride = f.row_bytes;
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
    for (const Run& run : p.transfer->runs) {
      void* data = receive ? f.landed_row(run.landed_row) : const_cast<std::byte*>(f.source_row(run.owner_row));
      add(p, receive, data, f.row_bytes * static_cast<std::size_t>(run.rows));
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
      copy_rows(f.landed_row(run.landed_row), f.row_bytes, staging, f.row_bytes, f.row_bytes, run.rows);
      staging += f.row_bytes * static_cast<std::size_t>(run.rows);
    }
  }
};

}  // namespace

Work CommunicatorImpl::gather_by_host(const std::shared_ptr<const Prepared::Data>& prepared,
                                      std::span<const GatherField> fields, const Stream& stream) {
  const auto slot = static_cast<std::size_t>(gathers_ % Prepared::slots);
  const auto task = std::make_shared<GatherTask>(weak_from_this(), prepared, prepared->gather_slots[slot]);
  for (const GatherField& f : fields) task->bind(f, rank());

  const std::shared_ptr<OpState> op = make_op(OpKind::gather, task->names());
  task->add_items(op);
  op->expect_task();
  op->set_landed(task->landed);
  op->keep(task);
  open_op(op);
  ++gathers_;
  if (const auto& previous = gather_last_[slot].last) stream.impl().wait(previous->all_done(), {});
  gather_last_[slot].last = op;
  stream.run([task] { task->run(); });
  return Work(op);
}

}  // namespace tandem::detail
