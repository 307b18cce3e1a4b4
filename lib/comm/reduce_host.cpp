// SPDX-License-Identifier: Apache-2.0
// Reductions over host-driven transports: tasks on streams pack, post and add; the transport reports arrivals.
#include <cstring>

#include "comm/communicator_impl.hpp"
#include "comm/reduce.hpp"
#include "device/bf16.hpp"

namespace tandem::detail {

namespace {

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

class HostReduction final : public ReductionState {
 public:
  HostReduction(const std::shared_ptr<CommunicatorImpl>& comm, std::shared_ptr<OpState> op,
                std::shared_ptr<const Prepared::Data> prepared, std::vector<ReduceField> fields, Buffer staging)
      : ReductionState(std::move(op), std::move(prepared), std::move(fields), std::move(staging)), comm_(comm) {}

  void begin(const Stream& stream, const std::shared_ptr<OpState>& previous) override {
    if (previous) stream.impl().wait(previous->all_done(), {});
    // The operation's deadline starts with finish(): until then this rank itself is computing.
    stream.run([this, self = shared_from_this()] {
      std::vector<WireTransfer> transfers;
      std::vector<std::size_t> items;
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        for (std::size_t d = 0; d < plan().departures().size(); ++d) {
          const ChunkTransfer& t = plan().departures()[d];
          transfers.push_back({t.peer, true, receive_staging(f, d), wire_bytes(f, t), tag(f, t.chunk).encode()});
          items.push_back(incoming_[f][d]);
        }
      }
      if (const auto impl = comm_.lock()) impl->post(op_, transfers, std::move(items));
    });
  }

 private:
  void send(std::size_t f, std::size_t a, const Stream& stream) override {
    stream.run([this, self = shared_from_this(), f, a] { post(f, a); });
  }

  void add_all(const Stream& stream) override {
    stream.run([op = op_] { op->start(); });
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const std::span<const Chunk> own = plan().chunks_of(plan().rank());
      for (std::size_t c = 0; c < own.size(); ++c) {
        for (const std::size_t d : departures_of_[c]) op_->wait_item(stream, incoming_[f][d]);
        stream.run([this, self = shared_from_this(), f, c] {
          if (op_->status().ok()) add_chunk(f, c);
        });
      }
    }
    stream.run([op = op_] { op->task_done(); });
  }

  // The owner takes one block of rows; where they lie in one piece here they leave without a copy.
  void post(std::size_t f, std::size_t a) const {
    const ChunkTransfer& t = plan().arrivals()[a];
    const void* data = send_staging(f, a);
    if (data == nullptr) {
      data = contribution_row(f, t.runs.front().landed_row);
    } else {
      std::byte* block = send_staging(f, a);
      for (const Run& run : t.runs) {
        for (std::int64_t i = 0; i < run.rows; ++i) {
          to_wire(spec(f).wire, block, contribution_row(f, run.landed_row + i), spec(f).row_elements);
        }
      }
    }
    const WireTransfer transfer{t.peer, false, const_cast<void*>(data), wire_bytes(f, t), tag(f, t.chunk).encode()};
    if (const auto impl = comm_.lock()) impl->post(op_, {&transfer, 1}, {outgoing_[f][a].item});
  }

  void add_chunk(std::size_t f, std::size_t c) const {
    const Chunk& chunk = plan().chunks_of(plan().rank())[c];
    const std::int64_t n = spec(f).row_elements;
    std::vector<float> sum(static_cast<std::size_t>(chunk.rows * n), 0.0F);
    auto row = [&](std::int64_t owner_row) { return sum.data() + (owner_row - chunk.first_row) * n; };
    for (const std::size_t d : departures_of_[c]) {
      const std::byte* from = receive_staging(f, d);
      for (const Run& run : plan().departures()[d].runs) add_wire(spec(f).wire, row(run.owner_row), from, run.rows * n);
    }
    if (const ChunkTransfer* own = plan().arrival(chunk.id)) {
      for (const Run& run : own->runs) {
        for (std::int64_t i = 0; i < run.rows; ++i) {
          const float* mine = contribution_row(f, run.landed_row + i);
          float* to = row(run.owner_row + i);
          for (std::int64_t e = 0; e < n; ++e) to[e] += mine[e];
        }
      }
    }
    for (std::int64_t i = 0; i < chunk.rows; ++i)
      store_row(fields_[f].result, chunk.first_row + i, sum.data() + i * n, n);
  }

  const std::weak_ptr<CommunicatorImpl> comm_;
};

}  // namespace

std::shared_ptr<ReductionState> make_host_reduction(std::shared_ptr<CommunicatorImpl> comm, std::shared_ptr<OpState> op,
                                                    std::shared_ptr<const Prepared::Data> prepared,
                                                    std::vector<ReduceField> fields, Buffer staging) {
  return std::make_shared<HostReduction>(comm, std::move(op), std::move(prepared), std::move(fields),
                                         std::move(staging));
}

}  // namespace tandem::detail
