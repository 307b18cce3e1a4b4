// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/device.hpp"
#include "tandem/tensor.hpp"

/// Rows between a place where they lie apart (a tensor with strides, an accumulator) and a packed buffer, where row i
/// is at i x row_bytes. All calls enqueue one kernel, or none if there are no rows, and throw invalid_argument for a
/// stream of the host. Addresses and strides may have any alignment; the kernels move up to 16 bytes at a time where
/// all of them allow it.
namespace tandem::detail::cuda {

/// Rows [row, row + rows) of the strided side are rows [packed_row, packed_row + rows) of the packed side.
struct RowRun {
  std::int64_t row = 0;
  std::int64_t packed_row = 0;
  std::int64_t rows = 0;
};

/// Runs in memory that the GPU can read (its own, or page-locked), which must live and stay as they are until the work
/// ran. They ascend in packed_row, begin at 0 and leave no gap; none may be empty, and no strided row is in two of
/// them.
struct RowRuns {
  const RowRun* runs = nullptr;
  std::int64_t count = 0;
  std::int64_t rows = 0;  ///< of all runs together
};

/// packed := rows of source, which lie `source_stride` bytes apart.
void pack_rows(const Stream& stream, const RowRuns& runs, const void* source, std::size_t source_stride, void* packed,
               std::size_t row_bytes);

/// Rows of destination := packed. Other rows, and what lies between rows, stay as they are.
void place_rows(const Stream& stream, const RowRuns& runs, const void* packed, void* destination,
                std::size_t destination_stride, std::size_t row_bytes);

/// Rows of accumulator (fp32, `accumulator_stride` bytes apart) += packed, in fp32: each element is one addition,
/// rounded to nearest. Two calls on one stream add in their order, so that sums have the same bits in every run.
/// `type` of the packed rows is f32 or bf16; throws invalid_argument for another, or if an address or the stride is not
/// a multiple of its element's size.
void add_rows(const Stream& stream, const RowRuns& runs, const void* packed, DType type, float* accumulator,
              std::size_t accumulator_stride, std::int64_t row_elements);

}  // namespace tandem::detail::cuda
