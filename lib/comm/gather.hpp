// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/op.hpp"
#include "comm/own_rows.hpp"
#include "comm/prepared.hpp"

namespace tandem::detail {

/// Rows of one field on this rank: where local rows are read and landed rows are written.
struct FieldRows {
  const std::byte* source = nullptr;
  std::size_t source_stride = 0;
  std::byte* landed = nullptr;
  std::size_t row_bytes = 0;
  /// Of rows that are where they land already, and have no source; else null.
  const OwnRows* in_place = nullptr;

  /// Those of a run lie together from there on, `source_stride` apart.
  const std::byte* source_row(std::int64_t i) const {
    return in_place != nullptr ? landed_row(in_place->landed_row(i))
                               : source + static_cast<std::size_t>(i) * source_stride;
  }
  std::byte* landed_row(std::int64_t i) const { return landed + static_cast<std::size_t>(i) * row_bytes; }
};

/// The fields of one gather, checked, with their memory: what both ways to run one start from.
struct GatherFields {
  std::shared_ptr<const Prepared::Data> prepared;
  Plan plan;
  Buffer slot;
  std::vector<GatherField> fields;
  std::vector<std::size_t> specs;  ///< of each field in what was prepared
  std::vector<FieldRows> rows;
  std::vector<Tensor> landed;
  std::shared_ptr<const OwnRows> own_rows;  ///< only if a field is in place

  GatherFields(std::shared_ptr<const Prepared::Data> p, Buffer s)
      : prepared(std::move(p)), plan(prepared->plan), slot(std::move(s)) {}

  /// Throws invalid_usage for a field that was not prepared, invalid_argument for tensors that do not fit.
  void bind(const GatherField& field, int rank);
  /// Memory in the slot for a packed transfer; null if it is not packed.
  std::byte* staging(const std::vector<std::vector<Prepared::Data::Staging>>& all, std::size_t field,
                     std::size_t transfer) const;
  OpItem item_of(std::size_t field, const ChunkTransfer& transfer, bool receive) const;
  std::vector<std::string> names() const;
};

}  // namespace tandem::detail
