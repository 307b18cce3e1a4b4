// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tandem/bench/backward_kernels.hpp"
#include "tandem/bench/compute_options.hpp"
#include "tandem/bench/compute_report.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/forward_kernels.hpp"
#include "tandem/bench/row_fill.hpp"
#include "tandem/bench/step_sample.hpp"
#include "tandem/bench/turns.hpp"
#include "tandem/communicator.hpp"
#include "tandem/dsa.hpp"
#include "tandem/inputs.hpp"

namespace tandem::cli {

/// One step of the operator (forward, backward or both) in all the ways that are compared: with its communication, by
/// each schedule, and each part of it alone. Every call is collective.
class DsaStep {
 public:
  /// `job` and `comm` must outlive it.
  DsaStep(const ComputeJob& job, Communicator& comm, std::shared_ptr<KernelSet> kernels, const RowFiller& filler,
          std::int64_t seq_len);

  /// Times them by turns; a row for each schedule.
  std::vector<ComputeRow> measure(BenchTimer& timer, BenchRanks& ranks, BenchData& data);

 private:
  Turn turn(Schedule schedule);
  Turn overlap();
  Turn blocking();
  Turn kernels_alone();
  Turn gather_alone();
  Turn reduce_alone();

  void gather(const Stream& stream, const LandedKeys& to);
  LandedKeys landed() const;
  void land_for_good(const Stream& stream);
  void keep_landed(const Stream& stream);
  LandedKeys kept_for_backward() const;
  DsaContext context_of_kernels() const;

  RowVerdict check_kernels(const Stream& stream, BenchData& data);
  StepResults results_of(Schedule schedule) const;
  std::int64_t differing_rows(Schedule schedule, const StepSample& wanted, const Stream& stream, BenchData& data);
  ComputeRow figures(BenchRanks& ranks) const;

  const ComputeJob& job_;
  Communicator& comm_;
  const std::shared_ptr<KernelSet> kernels_;
  const RowFiller& filler_;
  const std::int64_t seq_len_;
  DsaAttention attention_;
  const Plan plan_;
  const InputRows rows_;
  std::unique_ptr<ForwardKernels> ahead_;
  std::unique_ptr<BackwardKernels> back_;  ///< null without a backward
  LandedKeys kept_;
  DsaAttention::Forward forward_;
  DsaAttention::Backward backward_;
  Work gather_;
};

}  // namespace tandem::cli
