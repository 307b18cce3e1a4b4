// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tandem/bench/data.hpp"
#include "tandem/bench/forward_kernels.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

/// What DsaAttention::backward enqueues between its submits, in the same order and with gradients of its own; and the
/// reduction of what they leave, whole.
class BackwardKernels {
 public:
  /// Works on the outputs of `forward`, which must outlive it, like `job`.
  BackwardKernels(const ComputeJob& job, const Plan& plan, std::shared_ptr<KernelSet> kernels, const DsaInputs& inputs,
                  const Tensor& dout, const ForwardKernels& forward, const Device& device);

  /// `landed` must live until this has run.
  void enqueue(const LandedKeys& landed, const Stream& stream);
  /// All chunks at once; `stream` waits for the results. Collective.
  void reduce(Communicator& comm, const Stream& stream);
  void poison(const Stream& stream, BenchData& data) const;

  const Tensor& dout() const noexcept { return dout_; }
  /// dkv and d_index_k are those that reduce() wrote.
  const DsaGradients& gradients() const noexcept { return gradients_; }
  /// f32 [landed rows, d]: before the reduction.
  const Tensor& own_dkv() const noexcept { return own_dkv_; }

 private:
  const ComputeJob& job_;
  const Plan plan_;
  const std::shared_ptr<KernelSet> kernels_;
  const DsaInputs inputs_;
  const Tensor dout_;
  const ForwardKernels& forward_;
  DsaGradients gradients_;
  Tensor own_dkv_, own_d_index_k_;
  Tensor head_sums_;  ///< f32 [s, K]; empty without a loss
  Work reduce_;
};

}  // namespace tandem::cli
