// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "kernels/cpu/context.hpp"
#include "kernels/validate.hpp"

namespace tandem {
namespace detail::cpu {
namespace {

/// Raised by one when any result of these kernels changes by a bit.
constexpr std::uint32_t kernels_version = 1;

class CpuKernels final : public KernelSet {
 public:
  explicit CpuKernels(int threads) : pool_(std::make_shared<ThreadPool>(threads)) {}

  std::string name() const override { return "cpu"; }
  std::uint32_t numerics_version() const override { return (kernels_version << 8) | micro().id; }

  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override {
    validate_indexer_topk(step, in, state, out);
    enqueue(stream, [step, in, state, out](const Context& c) { cpu::indexer_topk(c, step, in, state, out); });
  }
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override {
    validate_select_topk(in, out);
    enqueue(stream, [in, out](const Context& c) { cpu::select_topk(c, in, out); });
  }
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override {
    validate_sparse_mla_forward(in, out);
    enqueue(stream, [in, out](const Context& c) { cpu::sparse_mla_forward(c, in, out); });
  }
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override {
    validate_sparse_mla_backward(rows, in, grads);
    enqueue(stream, [rows, in, grads](const Context& c) { cpu::sparse_mla_backward(c, rows, in, grads); });
  }
  void dense_head_sums(RowRange rows, const IndexerInputs& bounds, const AttentionInputs& in, const Tensor& head_sums,
                       const Stream& stream) override {
    validate_dense_head_sums(rows, bounds, in, head_sums);
    enqueue(stream, [=](const Context& c) { cpu::dense_head_sums(c, rows, bounds, in, head_sums); });
  }
  void indexer_loss(const IndexerInputs& in, const LossSupport& support, const IndexerLoss& loss,
                    const Stream& stream) override {
    validate_indexer_loss(in, support, loss);
    enqueue(stream, [in, support, loss](const Context& c) { cpu::indexer_loss(c, in, support, loss); });
  }

 private:
  template <class Kernel>
  void enqueue(const Stream& stream, Kernel kernel) const {
    if (stream.device().kind() != DeviceKind::host) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("kernel set cpu: stream {} is not of a host device", stream.name()));
    }
    // The task shares the pool, so that the kernel set may go before its work has run.
    stream.run([pool = pool_, kernel = std::move(kernel)] { kernel(Context{micro(), *pool}); });
  }

  std::shared_ptr<ThreadPool> pool_;
};

}  // namespace
}  // namespace detail::cpu

std::shared_ptr<KernelSet> cpu_kernels(const CpuKernelOptions& options) {
  if (options.threads < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("threads: expected 0 or more, got {}", options.threads));
  }
  const int threads = options.threads > 0 ? options.threads : detail::cpu::default_threads();
  return std::make_shared<detail::cpu::CpuKernels>(threads);
}

}  // namespace tandem
