// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/compute_report.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/forward_kernels.hpp"
#include "tandem/bench/row_fill.hpp"
#include "tandem/bench/turns.hpp"
#include "tandem/communicator.hpp"
#include "tandem/dsa.hpp"

namespace tandem::cli {

/// One forward step of the operator in all the ways that are compared: with its communication, by each schedule, and
/// each half of it alone. Every call is collective.
class ForwardStep {
 public:
  /// `job` and `comm` must outlive it.
  ForwardStep(const ComputeJob& job, Communicator& comm, std::shared_ptr<KernelSet> kernels, const RowFiller& filler,
              std::int64_t seq_len);

  /// Times them by turns; a row for each schedule.
  std::vector<ComputeRow> measure(BenchTimer& timer, BenchRanks& ranks, BenchData& data);

 private:
  /// Of some rows: output, lse, list, byte by byte.
  using Sample = std::vector<std::vector<std::byte>>;

  Turn turn(Schedule schedule);
  Turn kernels_alone();
  Turn gather_alone();
  void gather(const Stream& stream);
  LandedKeys landed() const;
  void land_for_good(const Stream& stream);
  RowVerdict check_kernels(const Stream& stream, BenchData& data);
  std::int64_t differing_rows(Schedule schedule, const Sample& wanted, const Stream& stream, BenchData& data);
  Sample sample(const Tensor& out, const Tensor& lse, const Tensor& global) const;
  ComputeRow figures(BenchRanks& ranks) const;

  const ComputeJob& job_;
  Communicator& comm_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const std::int64_t seq_len_;
  const Plan plan_;
  DsaInputs inputs_;
  DsaAttention attention_;
  std::unique_ptr<ForwardKernels> alone_;
  LandedKeys kept_;
  DsaAttention::Forward forward_;
  Work gather_;
};

}  // namespace tandem::cli
