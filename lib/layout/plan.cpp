// SPDX-License-Identifier: Apache-2.0
#include "tandem/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.hpp"
#include "layout/layout_data.hpp"
#include "layout/plan_data.hpp"

namespace tandem {
namespace {

void check_options(const PlanOptions& options) {
  const auto at_least_one = [](const char* name, std::int64_t value) {
    if (value < 1) detail::reject(fmt::format("{} = {} is below 1", name, value));
  };
  at_least_one("chunk_tokens", options.chunk_tokens);
  at_least_one("carry_rows", options.carry_rows);
  at_least_one("block_rows", options.block_rows);
  at_least_one("max_runs", options.max_runs);
}

std::uint64_t hash_of(const SequenceLayout& layout, const PlanOptions& options) {
  return detail::Hash()
      .combine("tandem plan 0")
      .combine(layout.hash())
      .combine(options.chunk_tokens)
      .combine(options.carry_rows)
      .combine(options.block_rows)
      .combine(options.max_runs)
      .value();
}

}  // namespace

std::int64_t IndexerStep::row_count() const noexcept {
  std::int64_t count = 0;
  for (const RowRange& r : rows) count += r.size();
  return count;
}

Plan::Plan(const SequenceLayout& layout, int rank, const PlanOptions& options) {
  if (rank < 0 || rank >= layout.ranks()) {
    detail::reject(fmt::format("rank {} is outside the layout's {} ranks", rank, layout.ranks()));
  }
  check_options(options);
  auto data = std::make_shared<Data>(layout, rank, options);
  data->hash = hash_of(layout, options);
  detail::fill_visible_keys(*data);
  detail::fill_chunks(*data);
  detail::fill_transfers(*data);
  data->steps = detail::make_indexer_steps(*data);
  detail::fill_query_blocks(*data);
  data_ = std::move(data);
}

const SequenceLayout& Plan::layout() const noexcept { return data_->layout; }
int Plan::rank() const noexcept { return data_->rank; }
int Plan::ranks() const noexcept { return data_->layout.ranks(); }
const PlanOptions& Plan::options() const noexcept { return data_->options; }
std::uint64_t Plan::hash() const noexcept { return data_->hash; }

std::int64_t Plan::rows() const noexcept { return data_->rows(); }
std::int64_t Plan::landed_rows() const noexcept { return data_->landed_rows; }

std::int64_t Plan::to_global(std::int64_t landed_row) const {
  if (landed_row < 0 || landed_row >= landed_rows()) {
    detail::reject(fmt::format("landed row {} is outside the {} of rank {}", landed_row, landed_rows(), rank()));
  }
  const auto next = std::upper_bound(data_->needed.begin(), data_->needed.end(), landed_row,
                                     [](std::int64_t row, const detail::NeededRange& n) { return row < n.landed_row; });
  const detail::NeededRange& n = *(next - 1);
  return n.begin + landed_row - n.landed_row;
}

std::int64_t Plan::to_landed(std::int64_t position) const {
  if (position < 0 || position >= layout().total_rows()) {
    detail::reject(fmt::format("position {} is outside the {} rows of the stream", position, layout().total_rows()));
  }
  return detail::landed_row(data_->needed, position);
}

std::span<const std::int64_t> Plan::key_begin() const noexcept { return data_->key_begin; }
std::span<const std::int64_t> Plan::key_end() const noexcept { return data_->key_end; }

std::span<const Chunk> Plan::chunks() const noexcept { return data_->chunks; }

std::span<const Chunk> Plan::chunks_of(int owner) const {
  if (owner < 0 || owner >= ranks()) {
    detail::reject(fmt::format("rank {} is outside the layout's {} ranks", owner, ranks()));
  }
  return data_->chunks_of(owner);
}

std::span<const ChunkTransfer> Plan::arrivals() const noexcept { return data_->arrivals; }
std::span<const ChunkTransfer> Plan::departures() const noexcept { return data_->departures; }

const ChunkTransfer* Plan::arrival(ChunkId chunk) const {
  if (chunk < 0 || chunk >= std::ssize(data_->chunks)) {
    detail::reject(fmt::format("chunk {} is outside the plan's {} chunks", chunk, data_->chunks.size()));
  }
  const std::int32_t index = data_->arrival_of_chunk[static_cast<std::size_t>(chunk)];
  return index < 0 ? nullptr : &data_->arrivals[static_cast<std::size_t>(index)];
}

std::int64_t Plan::received_rows() const noexcept { return data_->received_rows; }
std::int64_t Plan::sent_rows() const noexcept { return data_->sent_rows; }

std::span<const IndexerStep> Plan::indexer_steps() const noexcept { return data_->steps; }
std::span<const RowRange> Plan::query_blocks() const noexcept { return data_->blocks; }

std::span<const ChunkId> Plan::final_after(std::size_t block) const {
  if (block >= data_->blocks.size()) {
    detail::reject(fmt::format("query block {} is outside the plan's {} blocks", block, data_->blocks.size()));
  }
  return std::span(data_->final_chunks)
      .subspan(data_->final_offset[block], data_->final_offset[block + 1] - data_->final_offset[block]);
}

}  // namespace tandem
