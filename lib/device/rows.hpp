// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/impl.hpp"
#include "tandem/tensor.hpp"

/// Moving and adding rows on a stream: a loop in a task on the host, one kernel on a GPU. Strides count bytes.
///
/// All tables (runs, addends) must be where the stream's device can read them. `keep` is what has to outlive the work:
/// the host's task holds it; a GPU needs nothing of the kind, as freeing its memory waits for its work.
namespace tandem::detail {

/// Rows [from, from + rows) of one side are rows [to, to + rows) of the other.
struct RowRun {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t begin = 0;  ///< rows in all runs before this one
  std::int64_t rows = 0;
};

/// None of them may be empty, and no row of the written side may be in two of them.
struct RowRuns {
  const RowRun* runs = nullptr;
  std::int64_t count = 0;
  std::int64_t rows = 0;  ///< of all runs together
};

/// Rows of one tensor that follow the runs.
struct RowMove {
  const void* from = nullptr;
  std::size_t from_stride = 0;
  void* to = nullptr;
  std::size_t to_stride = 0;
  std::size_t row_bytes = 0;
};

/// fp32 rows that become dense bf16 rows.
struct RowRounding {
  const float* from = nullptr;
  std::size_t from_stride = 0;
  std::uint16_t* to = nullptr;
  std::int64_t elements = 0;
};

/// One contribution to a sum: dense rows at `offset` bytes of the staging, spread by `runs` runs from `first_run` on,
/// which ascend in `to`.
struct RowAddend {
  std::int64_t first_run = 0;
  std::int64_t runs = 0;
  std::int64_t offset = 0;
};

/// result[first_row, first_row + rows) := 0 + addends in their order + own, added in fp32, rounded once at the end if
/// the result is bf16. `to` of all runs is a row of the result; rows that nobody adds to become 0.
struct RowSum {
  const RowRun* runs = nullptr;
  const RowAddend* addends = nullptr;
  std::int64_t addend_count = 0;
  const void* staging = nullptr;
  DType wire = DType::f32;  ///< of the addends: f32 or bf16
  RowRuns own_runs;         ///< ascending in `to`
  const float* own = nullptr;
  std::size_t own_stride = 0;
  void* result = nullptr;
  DType result_type = DType::f32;  ///< or bf16
  std::size_t result_stride = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t elements = 0;
};

using KeepAlivePointer = std::shared_ptr<const void>;

/// to[run.to + i] := from[run.from + i] for every move; one kernel for up to eight moves.
inline void move_rows(const Stream& stream, const RowRuns& runs, std::span<const RowMove> moves,
                      const KeepAlivePointer& keep) {
  stream.impl().move_rows(runs, moves, keep);
}

inline void round_rows(const Stream& stream, const RowRuns& runs, const RowRounding& rounding,
                       const KeepAlivePointer& keep) {
  stream.impl().round_rows(runs, rounding, keep);
}

inline void sum_rows(const Stream& stream, const RowSum& sum, const KeepAlivePointer& keep) {
  stream.impl().sum_rows(sum, keep);
}

}  // namespace tandem::detail
