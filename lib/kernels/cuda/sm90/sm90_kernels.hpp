// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/cuda/generic/kernel_set.hpp"
#include "kernels/cuda/sm90/indexer_launch.hpp"
#include "kernels/cuda/sm90/sparse_backward_launch.hpp"

namespace tandem::detail::cuda::sm90 {

namespace launchers = detail::sm90;
using generic::GenericKernels;

bool dense(const Tensor& t);
/// Whether the first element is aligned to 16 bytes.
bool on_granule(const Tensor& t);
/// Whether every row is, and every vector of a row.
bool aligned(const Tensor& t);
/// Whether the kernels of this folder take lists of so many columns.
bool takes_topk(std::int64_t topk);
/// Throws invalid_argument.
void expect_dense(const char* name, const Tensor& t);

/// The set cuda.sm90. What its kernels cannot do is left to those of cuda.generic, row by row where lists decide.
class Sm90Kernels final : public GenericKernels {
 public:
  Sm90Kernels(const Device& device, bool deterministic);

  std::string name() const override { return "cuda.sm90"; }
  std::uint32_t numerics_version() const override;
  ConcurrentRows concurrent_rows(std::int64_t heads, std::int64_t index_heads) const override;

  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override;
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override;
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override;
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override;
  void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                    const Stream& stream) override;

 private:
  /// Which rows have lists that the kernels of this folder take: distinct landed rows, ascending.
  struct SortedOut {
    const std::int32_t* plain_length;          ///< i32 [s]: the length of such a list, 0 of another
    std::optional<generic::ChosenRows> other;  ///< rows of another, if there can be any
  };
  /// Enqueues the check of the lists of `rows`, unless it is promised that all are plain; of other rows nothing is
  /// written.
  SortedOut sort_out(RowRange rows, std::int64_t keys, const Tensor& indices, const Tensor& length, bool promised,
                     const Stream& stream);
  void run_indexer(launchers::IndexerArgs args, const Tensor& bounds, const TopkLists& out, const Stream& stream);
  /// Memory for as many rows at a time as are worth it.
  void give_workspace(launchers::SparseBackwardArgs& args, const Stream& stream);
  /// The tensor's memory if it is dense and aligned to 16 bytes, else that of a copy.
  const void* packed(const char* name, const Tensor& t, const Stream& stream);

  std::int64_t multiprocessors_ = 1;
};

}  // namespace tandem::detail::cuda::sm90
