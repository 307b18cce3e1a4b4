// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "inputs.hpp"
#include "job.hpp"
#include "report.hpp"
#include "results.hpp"
#include "tandem/communicator.hpp"
#include "tandem/dsa.hpp"

namespace tandem::cli {

/// One rank's part of `tandem dsa`: forward and backward once, then everything to rank 0. Keeps what the streams work
/// on, so after a failure it must live until they are idle().
class RankRun {
 public:
  /// `rank` chooses the GPU; `threads`: of kernels on the host, 0 for their default.
  RankRun(const DsaJob& job, int ranks, int rank, int threads);

  /// Collective. Throws Error; the other ranks hear of it.
  void run(CommunicatorOptions options, bool from_environment);
  /// Blocks up to `deadline`; true if nothing runs any more.
  bool idle(Deadline deadline) const noexcept;

  /// On rank 0, after run(): what every rank had to say; results if the job is to be checked, spans if they are wanted.
  const std::vector<RankSummary>& summaries() const noexcept { return summaries_; }
  /// In memory of the host.
  const Results& results() const noexcept { return results_; }
  const std::vector<RankSpans>& spans() const noexcept { return spans_; }

 private:
  void compute();
  InputRows make_inputs() const;
  void wait(const Stream& stream) const;
  RankSummary summarize_run() const;
  void collect();

  const DsaJob& job_;
  int ranks_;
  int threads_;
  Device device_;
  Stream stream_;
  std::shared_ptr<Trace> trace_;
  InputRows inputs_;
  DsaMemory memory_;
  std::optional<Communicator> comm_;
  std::optional<Plan> plan_;
  std::shared_ptr<KernelSet> kernels_;
  std::unique_ptr<DsaAttention> attention_;  // before what it uses goes
  DsaAttention::Forward forward_;
  DsaAttention::Backward backward_;
  Results local_;
  Results results_;
  std::vector<RankSummary> summaries_;
  std::vector<RankSpans> spans_;
};

}  // namespace tandem::cli
