// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "device/temporaries.hpp"
#include "kernels/cuda/generic/kernels.hpp"

namespace tandem::detail::cuda::generic {

/// The set cuda.generic. Sets for one generation of GPUs build on it.
class GenericKernels : public KernelSet {
 public:
  explicit GenericKernels(const Device& device, bool deterministic = false);

  std::string name() const override { return "cuda.generic"; }
  std::uint32_t numerics_version() const override;
  std::uint64_t scratch_bytes() const override {
    const std::lock_guard lock(mutex_);
    return scratch_.bytes();
  }
  bool deterministic() const override { return deterministic_; }
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
  /// Memory of the stream's, of at least so many elements, which keeps nothing from call to call.
  Tensor scratch(const char* name, const Stream& stream, DType dtype, std::int64_t elements) {
    const std::lock_guard lock(mutex_);
    return scratch_.take(name, stream, dtype, {elements});
  }

 private:
  const Context context_;
  const bool deterministic_;
  mutable std::mutex mutex_;
  Temporaries scratch_;
  std::uint32_t architecture_ = 0;
  ListFault* fault_ = nullptr;
};

/// Throws invalid_argument unless the tensor is dense i32 [rows, columns]; [rows] if columns is 1.
void expect_table(const char* name, const Tensor& t, std::int64_t rows, std::int64_t columns);
/// Throws unsupported for a K above most_topk.
void expect_topk(std::int64_t topk);

}  // namespace tandem::detail::cuda::generic
