// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/generic/kernels.hpp"

namespace tandem::detail::cuda::generic {

/// The set cuda.generic. Sets for one generation of GPUs build on it.
class GenericKernels : public KernelSet {
 public:
  explicit GenericKernels(const Device& device);

  std::string name() const override { return "cuda.generic"; }
  std::uint32_t numerics_version() const override;
  bool deterministic() const override { return false; }
  void throw_if_failed() override;
  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override;
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override;
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override;
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override;
  void dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in, const Tensor& head_sums,
                       const Stream& stream) override;
  void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                    const Stream& stream) override;

 protected:
  /// Throws invalid_argument for a stream of another device.
  NativeStream native(const Stream& stream) const;
  /// 10 * major + minor of the compute capability.
  std::uint32_t architecture() const noexcept { return architecture_; }
  const Context& context() const noexcept { return context_; }
  ListFault* fault() const noexcept { return fault_; }

 private:
  const Context context_;
  std::uint32_t architecture_ = 0;
  ListFault* fault_ = nullptr;
};

/// Throws invalid_argument unless the tensor is dense i32 [rows, columns]; [rows] if columns is 1.
void expect_table(const char* name, const Tensor& t, std::int64_t rows, std::int64_t columns);
/// Throws unsupported for a K above most_topk.
void expect_topk(std::int64_t topk);

}  // namespace tandem::detail::cuda::generic
