// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tandem/bench/contender.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/options.hpp"
#include "tandem/bench/timer.hpp"

/// What a benchmark on GPUs needs beside the rest. In a build without CUDA code all of it throws unsupported.
namespace tandem::cli {

std::unique_ptr<BenchData> make_cuda_data(const Device& device);
/// Collective.
std::unique_ptr<BenchTimer> make_cuda_timer(Communicator& comm, BenchRanks& ranks, std::chrono::milliseconds limit);

/// NCCL's all-gather or reduce-scatter, in place: communicators that serve all sizes.
class NcclSide {
 public:
  virtual ~NcclSide() = default;
  virtual std::string version() const = 0;
  /// One for each way to run it. Collective; they must go before this.
  virtual std::vector<std::unique_ptr<Contender>> contenders(std::uint64_t size, BenchData& data) = 0;
};
/// Collective. Throws UsageError if ranks share a GPU, which NCCL refuses; unsupported without a usable NCCL.
std::unique_ptr<NcclSide> make_nccl_side(const BenchJob& job, const Device& device, BenchRanks& ranks);

/// A sequence of GEMMs that runs beside contenders.
class GemmSide {
 public:
  virtual ~GemmSide() = default;
  /// Collective. `one_us`: what one operation takes, the same on all ranks. The contender has been run before.
  virtual BesideFigures measure(Contender& contender, double one_us) = 0;
};
/// `timer` is that of make_cuda_timer and must outlive it. Throws unsupported without a usable cuBLAS.
std::unique_ptr<GemmSide> make_gemm_side(const BenchJob& job, const Device& device, BenchTimer& timer,
                                         BenchRanks& ranks);

}  // namespace tandem::cli
