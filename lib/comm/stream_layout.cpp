// SPDX-License-Identifier: Apache-2.0
#include "comm/stream_layout.hpp"

#include <algorithm>
#include <map>

#include "base/bytes.hpp"
#include "comm/own_rows.hpp"
#include "comm/prepared.hpp"

namespace tandem::detail {

namespace {

std::vector<StreamLayout::Pair> number_pairs(std::span<const ChunkTransfer> transfers) {
  std::map<int, StreamLayout::Pair> seen;
  std::vector<StreamLayout::Pair> out;
  for (const ChunkTransfer& t : transfers) {
    StreamLayout::Pair& pair = seen[t.peer];
    out.push_back({pair.count++, 0, pair.first_row});
    pair.first_row += t.rows;
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i].count = seen[transfers[i].peer].count;
  return out;
}

std::uint64_t most_of_a_peer(std::span<const ChunkTransfer> transfers) {
  std::map<int, std::uint64_t> counts;
  std::uint64_t most = 0;
  for (const ChunkTransfer& t : transfers) {
    if (t.step > 0) most = std::max(most, ++counts[t.peer]);
  }
  return most;
}

enum class Row { owner, landed, packed };

std::int64_t row_of(const Run& run, Row side, std::int64_t packed) {
  return side == Row::owner ? run.owner_row : side == Row::landed ? run.landed_row : packed;
}

// The same rows of this rank, where they land here.
std::vector<Run> in_place(std::vector<Run> runs, const OwnRows& own_rows) {
  for (Run& run : runs) run.landed_row = own_rows.landed_row(run.owner_row);
  return runs;
}

class Tables {
 public:
  StreamLayout::Runs add(std::span<const Run> list, Row from, Row to) {
    StreamLayout::Runs out{static_cast<std::int64_t>(runs_.size()), 0, 0};
    extend(out, list, from, to);
    return out;
  }
  /// More of the same stretch, which must be the last.
  void extend(StreamLayout::Runs& out, std::span<const Run> list, Row from, Row to) {
    std::int64_t packed = 0;
    for (const Run& run : list) {
      runs_.push_back({row_of(run, from, packed), row_of(run, to, packed), out.rows, run.rows});
      packed += run.rows;
      out.rows += run.rows;
      ++out.count;
    }
  }
  std::int64_t add(const RowAddend& addend) {
    addends_.push_back(addend);
    return static_cast<std::int64_t>(addends_.size()) - 1;
  }
  std::int64_t addends() const { return static_cast<std::int64_t>(addends_.size()); }

  std::size_t bytes() const { return runs_.size() * sizeof(RowRun) + addends_.size() * sizeof(RowAddend); }

  void upload(StreamLayout& layout, const Device& device, Deadline deadline) const {
    layout.addends_at = runs_.size() * sizeof(RowRun);
    layout.table = device.allocate(bytes());
    const Stream stream = device.create_stream({.name = "prepare"});
    auto* const at = static_cast<std::byte*>(layout.table.data());
    stream.copy(at, runs_.data(), layout.addends_at);
    stream.copy(at + layout.addends_at, addends_.data(), addends_.size() * sizeof(RowAddend));
    stream.synchronize(deadline);
  }

 private:
  std::vector<RowRun> runs_;
  std::vector<RowAddend> addends_;
};

}  // namespace

std::uint64_t StreamLayout::round(std::size_t field, const ChunkTransfer& transfer, const Pair& pair,
                                  std::size_t row_bytes) {
  constexpr std::size_t round_bytes = std::size_t{8} << 20;
  constexpr unsigned step_bits = 16, part_bits = 40;
  const std::uint64_t part = static_cast<std::uint64_t>(pair.first_row) * row_bytes / round_bytes;
  return ((static_cast<std::uint64_t>(field) << step_bits | static_cast<std::uint64_t>(transfer.step)) << part_bits) |
         part;
}

std::uint64_t flags_needed(const Prepared::Data& data) {
  return std::max(data.spec.gather.size() * most_of_a_peer(data.plan.arrivals()),
                  data.spec.reduce.size() * most_of_a_peer(data.plan.departures()));
}

namespace {

Tables fill_tables(const Prepared::Data& data, StreamLayout& layout) {
  const Plan& plan = data.plan;
  Tables tables;
  const Run all{0, 0, plan.rows()};
  if (plan.rows() > 0) layout.dense = tables.add({&all, 1}, Row::owner, Row::owner);
  layout.own = tables.add({}, Row::owner, Row::landed);
  for (const ChunkTransfer& t : plan.arrivals()) {
    if (t.step == 0) tables.extend(layout.own, t.runs, Row::owner, Row::landed);
  }
  for (const ChunkTransfer& t : plan.arrivals()) {
    layout.place.push_back(t.packed && t.step > 0 ? tables.add(t.runs, Row::packed, Row::landed)
                                                  : StreamLayout::Runs{});
    layout.contribute.push_back(t.step > 0 ? tables.add(t.runs, Row::landed, Row::packed) : StreamLayout::Runs{});
  }
  const OwnRows own_rows(plan);
  std::vector<StreamLayout::Runs> back;  // [departure] contribution -> own rows
  for (const ChunkTransfer& t : plan.departures()) {
    layout.pack.push_back(t.packed ? tables.add(t.runs, Row::owner, Row::packed) : StreamLayout::Runs{});
    layout.pack_landed.push_back(t.packed ? tables.add(in_place(t.runs, own_rows), Row::landed, Row::packed)
                                          : StreamLayout::Runs{});
    back.push_back(tables.add(t.runs, Row::packed, Row::owner));
  }
  for (std::size_t f = 0; f < data.spec.reduce.size(); ++f) {
    std::vector<StreamLayout::Sum> sums;
    for (const Chunk& chunk : plan.chunks_of(plan.rank())) {
      StreamLayout::Sum sum;
      sum.first_addend = tables.addends();
      for (std::size_t d = 0; d < plan.departures().size(); ++d) {
        if (plan.departures()[d].chunk != chunk.id) continue;
        tables.add({back[d].first, back[d].count, static_cast<std::int64_t>(data.reduce.receive[f][d].offset)});
        ++sum.addends;
      }
      if (const ChunkTransfer* own = plan.arrival(chunk.id)) sum.own = tables.add(own->runs, Row::landed, Row::owner);
      sums.push_back(sum);
    }
    layout.sums.push_back(std::move(sums));
  }
  return tables;
}

}  // namespace

void make_tables(Prepared::Data& data, const Device& device, Deadline deadline) {
  data.streamed.arrivals = number_pairs(data.plan.arrivals());
  data.streamed.departures = number_pairs(data.plan.departures());
  fill_tables(data, data.streamed).upload(data.streamed, device, deadline);
}

std::size_t table_bytes(const Prepared::Data& data) {
  StreamLayout unused;
  return fill_tables(data, unused).bytes();
}

std::string encode_places(const Prepared::Data& data) {
  const Plan& plan = data.plan;
  ByteWriter w;
  for (const Prepared::Data::GatherSlot& field : data.gather.gather) w.u64(field.landed);
  // Those to whom something applies find it by who sends it, in their order: arrivals of one peer are in the order of
  // the peer's departures to this rank, and the reverse.
  for (const auto& field : data.gather.receive) {
    for (std::size_t a = 0; a < plan.arrivals().size(); ++a) {
      if (plan.arrivals()[a].step == 0) continue;
      w.i32(plan.arrivals()[a].peer);
      w.u64(field[a].offset);
    }
    w.i32(-1);
  }
  for (const auto& field : data.reduce.receive) {
    for (std::size_t d = 0; d < plan.departures().size(); ++d) {
      w.i32(plan.departures()[d].peer);
      w.u64(field[d].offset);
    }
    w.i32(-1);
  }
  return w.take();
}

void read_places(Prepared::Data& data, std::span<const std::string> places) {
  const Plan& plan = data.plan;
  StreamLayout& layout = data.streamed;
  layout.landed_at.assign(data.spec.gather.size(), {});
  layout.packed_at.assign(data.spec.gather.size(), std::vector<std::size_t>(plan.departures().size()));
  layout.contribution_at.assign(data.spec.reduce.size(), std::vector<std::size_t>(plan.arrivals().size()));
  for (int r = 0; r < plan.ranks(); ++r) {
    ByteReader reader(places[static_cast<std::size_t>(r)]);
    for (auto& field : layout.landed_at) field.push_back(static_cast<std::size_t>(reader.u64()));
    const auto read = [&](std::vector<std::size_t>& to, std::span<const ChunkTransfer> transfers) {
      std::size_t next = 0;
      for (int peer = reader.i32(); peer >= 0; peer = reader.i32()) {
        const auto offset = static_cast<std::size_t>(reader.u64());
        if (peer != plan.rank()) continue;
        while (next < transfers.size() && (transfers[next].peer != r || transfers[next].step == 0)) ++next;
        if (next == transfers.size()) {
          throw Error(ErrorCode::internal, "rank " + std::to_string(r) + " has another plan of what it exchanges", r);
        }
        to[next++] = offset;
      }
    };
    for (auto& field : layout.packed_at) read(field, plan.departures());
    for (auto& field : layout.contribution_at) read(field, plan.arrivals());
    reader.expect_end();
  }
}

}  // namespace tandem::detail
