// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/native.hpp"
#include "device/rows.hpp"

/// The kernels behind device/rows.hpp. Each call enqueues one (moves: one for each eight), or none if there are no
/// rows. Addresses and strides may have any alignment that their elements allow; the kernels use up to 16 bytes at a
/// time where all of them allow it.
namespace tandem::detail::cuda {

void move_rows(const NativeStream& stream, const RowRuns& runs, std::span<const RowMove> moves);
/// Throws invalid_argument if an address or stride is not a multiple of its element's size; so does sum_rows.
void round_rows(const NativeStream& stream, const RowRuns& runs, const RowRounding& rounding);
/// Each element is a chain of additions, each rounded to nearest, in the order of the addends: the same bits as the
/// host's, in every run.
void sum_rows(const NativeStream& stream, const RowSum& sum);

}  // namespace tandem::detail::cuda
