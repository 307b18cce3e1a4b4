// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/rows.hpp"
#include "tandem/communicator.hpp"

namespace tandem::detail {

/// What stream-ordered operations of a plan need besides the offsets that all have: flags, where things lie at the
/// peers, and tables for the kernels.
///
/// Lanes: one for each slot of gathers, then of reductions, then those of exchanges. Each has its own range of flags,
/// an equal share of what the transport has. Within it flags are numbered for each pair of ranks from what both know:
/// field after field, in a field the chunks that travel between the two, in the plan's order.
struct StreamLayout {
  static constexpr std::uint32_t exchange_lanes = 2;
  static constexpr std::uint32_t first_exchange_lane = 2 * Prepared::slots;
  static constexpr std::uint32_t lanes = first_exchange_lane + exchange_lanes;

  /// A stretch of the table of runs.
  struct Runs {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t rows = 0;
  };
  struct Sum {
    Runs own;
    std::int64_t first_addend = 0;
    std::int64_t addends = 0;
  };
  /// The place of a transfer among those of its pair of ranks.
  struct Pair {
    std::uint32_t index = 0;
    std::uint32_t count = 0;
    std::int64_t first_row = 0;  ///< rows of those before it
  };

  /// Of a transfer that belongs to the n-th field of an operation. What two ranks send each other in a step is cut into
  /// rounds of some MB, so that what arrives in one can be used while the next travels.
  static std::uint64_t round(std::size_t field, const ChunkTransfer& transfer, const Pair& pair, std::size_t row_bytes);

  Buffer table;  ///< RowRun[], then RowAddend[], where kernels can read them
  std::size_t addends_at = 0;
  Runs own;                            ///< own rows -> landed rows
  Runs dense;                          ///< all own rows -> the same
  std::vector<Runs> place;             ///< [arrival] packed rows -> landed rows; empty if it is not packed
  std::vector<Runs> pack;              ///< [departure] own rows -> packed rows
  std::vector<Runs> pack_landed;       ///< [departure] landed rows -> packed rows
  std::vector<Runs> contribute;        ///< [arrival] landed rows -> contribution
  std::vector<std::vector<Sum>> sums;  ///< [reduce field][own chunk]
  std::vector<Pair> arrivals, departures;

  std::uint64_t gather_region[Prepared::slots] = {};
  std::uint64_t reduce_region[Prepared::slots] = {};
  std::vector<std::vector<std::size_t>> landed_at;        ///< [gather field][rank] landed rows in that rank's slot
  std::vector<std::vector<std::size_t>> packed_at;        ///< [gather field][departure] in the receiver's slot
  std::vector<std::vector<std::size_t>> contribution_at;  ///< [reduce field][arrival] in the owner's slot

  RowRuns runs(const Runs& r) const { return {static_cast<const RowRun*>(table.data()) + r.first, r.count, r.rows}; }
  const RowAddend* addends() const {
    return reinterpret_cast<const RowAddend*>(static_cast<const std::byte*>(table.data()) + addends_at);
  }
};

/// Most flags that one lane needs of one peer, here.
std::uint64_t flags_needed(const Prepared::Data& data);

/// Fills the tables, whose memory is `device`'s; blocks until they are there.
void make_tables(Prepared::Data& data, const Device& device, Deadline deadline);

/// What they take, without making them.
std::size_t table_bytes(const Prepared::Data& data);

/// Where things lie in this rank's slots, for its peers; and what the peers' (by rank) mean for this rank.
std::string encode_places(const Prepared::Data& data);
void read_places(Prepared::Data& data, std::span<const std::string> places);

}  // namespace tandem::detail
