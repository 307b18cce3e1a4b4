// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "layout/layout_data.hpp"
#include "layout/plan_data.hpp"

namespace tandem::detail {
namespace {

/// Sends `emit(rows)` the sizes of the chunks of a shard, in order.
template <class Emit>
void cut_shard(std::span<const RowRange> segments, std::int64_t chunk_tokens, Emit emit) {
  std::int64_t open = 0;
  for (const RowRange& segment : segments) {
    for (std::int64_t left = segment.size(); left > 0;) {
      const std::int64_t taken = std::min(left, chunk_tokens - open);
      open += taken;
      left -= taken;
      // A chunk that is half full ends with its segment: the halves of a zigzag shard become final at different times.
      if (open == chunk_tokens || (left == 0 && open >= chunk_tokens - open)) {
        emit(open);
        open = 0;
      }
    }
  }
  if (open > 0) emit(open);
}

/// Collects the runs of one owner's rows for one receiver, cutting them at the owner's chunks.
class TransferWriter {
 public:
  TransferWriter(std::span<const Chunk> chunks, int peer, int step, std::vector<ChunkTransfer>& out)
      : chunk_(chunks.begin()), peer_(peer), step_(step), out_(out), first_(out.size()) {}

  /// Ascending in both numberings.
  void add(Run run) {
    while (run.rows > 0) {
      while (chunk_->first_row + chunk_->rows <= run.owner_row) ++chunk_;
      const std::int64_t taken = std::min(run.rows, chunk_->first_row + chunk_->rows - run.owner_row);
      append({run.owner_row, run.landed_row, taken});
      run = {run.owner_row + taken, run.landed_row + taken, run.rows - taken};
    }
  }

 private:
  void append(const Run& run) {
    if (out_.size() == first_ || out_.back().chunk != chunk_->id)
      out_.push_back({chunk_->id, peer_, step_, 0, {}, false});
    ChunkTransfer& transfer = out_.back();
    transfer.rows += run.rows;
    if (!transfer.runs.empty()) {
      Run& last = transfer.runs.back();
      if (last.owner_row + last.rows == run.owner_row && last.landed_row + last.rows == run.landed_row) {
        last.rows += run.rows;
        return;
      }
    }
    transfer.runs.push_back(run);
  }

  std::span<const Chunk>::iterator chunk_;
  int peer_;
  int step_;
  std::vector<ChunkTransfer>& out_;
  std::size_t first_;
};

/// Feeds the writer the rows of `segments`, an owner's shard, that are among `needed`.
void intersect(std::span<const RowRange> segments, const std::vector<NeededRange>& needed, TransferWriter writer) {
  auto need = needed.begin();
  std::int64_t segment_row = 0;
  for (const RowRange& segment : segments) {
    while (need != needed.end() && need->end <= segment.begin) ++need;
    while (need != needed.end() && need->begin < segment.end) {
      const std::int64_t begin = std::max(need->begin, segment.begin);
      const std::int64_t end = std::min(need->end, segment.end);
      writer.add({segment_row + begin - segment.begin, need->landed_row + begin - need->begin, end - begin});
      if (need->end > segment.end) break;  // the next segment may hold more of it
      ++need;
    }
    if (need == needed.end()) return;
    segment_row += segment.size();
  }
}

void mark_packed(std::vector<ChunkTransfer>& transfers, std::int64_t max_runs) {
  for (ChunkTransfer& t : transfers) t.packed = std::ssize(t.runs) > max_runs;
}

int wrapped(int rank, int ranks) { return rank < 0 ? rank + ranks : rank; }

}  // namespace

void fill_chunks(PlanData& plan) {
  plan.chunk_offset.push_back(0);
  for (int owner = 0; owner < plan.layout.ranks(); ++owner) {
    std::int64_t first_row = 0;
    cut_shard(plan.layout.segments(owner), plan.options.chunk_tokens, [&](std::int64_t rows) {
      if (plan.chunks.size() >= std::numeric_limits<ChunkId>::max()) {
        reject(fmt::format("chunk_tokens = {} cuts {} rows into more chunks than there are numbers for",
                           plan.options.chunk_tokens, plan.layout.total_rows()));
      }
      plan.chunks.push_back({static_cast<ChunkId>(plan.chunks.size()), owner, first_row, rows});
      first_row += rows;
    });
    plan.chunk_offset.push_back(plan.chunks.size());
  }
}

void fill_transfers(PlanData& plan) {
  const int ranks = plan.layout.ranks();
  const std::span<const RowRange> own_segments = plan.layout.segments(plan.rank);
  for (int step = 0; step < ranks; ++step) {
    const int owner = wrapped(plan.rank - step, ranks);
    intersect(plan.layout.segments(owner), plan.needed,
              TransferWriter(plan.chunks_of(owner), owner, step, plan.arrivals));
  }
  for (int step = 1; step < ranks; ++step) {
    const int receiver = wrapped(plan.rank - (ranks - step), ranks);
    intersect(own_segments, needed_rows(plan.layout, receiver),
              TransferWriter(plan.chunks_of(plan.rank), receiver, step, plan.departures));
  }
  mark_packed(plan.arrivals, plan.options.max_runs);
  mark_packed(plan.departures, plan.options.max_runs);
  plan.arrival_of_chunk.assign(plan.chunks.size(), -1);
  for (std::size_t i = 0; i < plan.arrivals.size(); ++i) {
    const ChunkTransfer& t = plan.arrivals[i];
    plan.arrival_of_chunk[static_cast<std::size_t>(t.chunk)] = static_cast<std::int32_t>(i);
    if (t.step > 0) plan.received_rows += t.rows;
  }
  for (const ChunkTransfer& t : plan.departures) plan.sent_rows += t.rows;
}

}  // namespace tandem::detail
