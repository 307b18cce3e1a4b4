// SPDX-License-Identifier: Apache-2.0
#include "rank_run.hpp"

#include <cstring>
#include <set>
#include <type_traits>

#include "kernel_sets.hpp"

namespace tandem::cli {
namespace {

constexpr std::chrono::milliseconds glance{50};  // how often a wait looks whether the group still stands

DsaConfig config_of(const DsaJob& job) {
  DsaConfig config = config_of(job.shape);
  config.dtype = job.dtype;
  config.index_dtype = job.index_dtype;
  config.wire = job.wire;
  config.deterministic = job.deterministic;
  config.loss = IndexerLossKind::sparse;
  config.loss_pass = job.loss_pass;
  return config;
}

}  // namespace

RankRun::RankRun(const DsaJob& job, int ranks, int rank, int threads)
    : job_(job), ranks_(ranks), threads_(threads), device_(device_of(job, rank)) {
  stream_ = device_.create_stream({.name = "compute"});
}

void RankRun::run(CommunicatorOptions options, bool from_environment) {
  options.device = device_;
  options.rendezvous_timeout = job_.rendezvous_timeout;
  options.operation_timeout = job_.timeout;
  trace_ = std::make_shared<Trace>(options.rank);
  options.trace = trace_;
  comm_.emplace(from_environment ? Communicator::from_environment(options) : Communicator::create(options));
  try {
    compute();
    collect();
    comm_->finalize(Deadline::after(job_.timeout));
  } catch (const Error& error) {
    // A lost peer, or an abort, is known to all already; telling it again could hide who was first.
    if (error.code() != ErrorCode::peer_failed && error.code() != ErrorCode::aborted) comm_->abort(error.what());
    throw;
  } catch (const std::exception& error) {
    comm_->abort(error.what());
    throw;
  }
}

bool RankRun::idle(Deadline deadline) const noexcept {
  try {
    device_.synchronize(deadline);
    return true;
  } catch (const Error& error) {
    return error.code() != ErrorCode::timeout;
  } catch (const std::exception&) {
    return false;
  }
}

void RankRun::compute() {
  const SequenceLayout layout = job_.layout(ranks_);
  kernels_ = make_kernels(job_.kernels, device_, threads_, job_.deterministic);
  attention_ = std::make_unique<DsaAttention>(*comm_, kernels_, config_of(job_));
  plan_.emplace(layout, comm_->rank(), job_.plan_options(ranks_, attention_->plan_options()));
  attention_->prepare(*plan_);
  memory_ = attention_->memory(*plan_);
  inputs_ = make_inputs();
  comm_->barrier(Deadline::after(job_.timeout));  // all start together: a late peer is no stall of the operator
  trace_->clear();
  forward_ = attention_->forward(*plan_, inputs_.inputs, stream_);
  backward_ = attention_->backward(forward_.context, inputs_.inputs, inputs_.dout, 1.0, stream_);
  backward_.reduce.wait(stream_);
  wait(stream_);
  attention_->synchronize(stream_, Deadline::after(job_.timeout));
  forward_.gather.status().throw_if_failed();
  backward_.reduce.status().throw_if_failed();
  local_ = {forward_.outputs, backward_.gradients};
  if (job_.loss_pass == LossPass::backward) local_.outputs.loss = backward_.gradients.loss;
}

InputRows RankRun::make_inputs() const {
  const SequenceLayout& layout = plan_->layout();
  InputRows made = InputGenerator(job_).rows(Device::host(), layout, layout.segments(comm_->rank()));
  if (device_.kind() == DeviceKind::host) return made;
  InputRows there = made;
  DsaInputs& in = there.inputs;
  for (Tensor* t : {&in.q, &in.kv, &in.index_q, &in.index_k, &in.index_k_scale, &in.index_w, &there.dout}) {
    if (!t->valid()) continue;
    const Tensor host = *t;
    *t = allocate_like(device_, host, host.size(0));
    stream_.copy(t->data(), host.data(), host.row_bytes() * static_cast<std::size_t>(host.size(0)));
  }
  stream_.synchronize(Deadline::after(job_.timeout));
  return there;
}

// Compute may take long, so there is no deadline; every operation has one of its own, and what it says is seen here.
void RankRun::wait(const Stream& stream) const {
  while (true) {
    try {
      return stream.synchronize(Deadline::after(glance));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
    }
    comm_->status().throw_if_failed();
  }
}

RankSummary RankRun::summarize_run() const {
  RankSummary summary;
  summary.tokens = plan_->rows();
  summary.needed_bytes = static_cast<std::uint64_t>(plan_->landed_rows()) * gathered_row_bytes(job_);
  summary.gathered_bytes = forward_.gather.received_bytes();
  summary.reduced_bytes = backward_.reduce.received_bytes();
  const OverlapSummary overlap = summarize(trace_->spans());
  summary.transfer_us = static_cast<double>(overlap.transfer_ns) / 1e3;
  summary.exposed_us = static_cast<double>(overlap.exposed_ns) / 1e3;
  summary.compute_us = static_cast<double>(overlap.compute_ns) / 1e3;
  stream_.copy(&summary.nan_scores, forward_.outputs.nan_count.data(), sizeof(summary.nan_scores));
  stream_.synchronize(Deadline::after(job_.timeout));
  summary.memory = memory_;
  std::set<std::string> paths;
  for (const Work* work : {&forward_.gather, &backward_.reduce}) {
    for (const std::string& path : work->paths()) paths.insert(path);
  }
  kernels_->name().copy(summary.kernels, sizeof(summary.kernels) - 1);
  std::string joined;
  for (const std::string& path : paths) joined += path + ",";
  joined.copy(summary.paths, sizeof(summary.paths) - 1);
  return summary;
}

void RankRun::collect() {
  static_assert(std::is_trivially_copyable_v<RankSummary>);
  const RankSummary summary = summarize_run();
  const RankSpans spans{comm_->rank(), comm_->clock_offset_ns(), trace_->spans()};
  const std::string bytes(reinterpret_cast<const char*>(&summary), sizeof(summary));
  for (const std::string& one : collect_bytes(*comm_, bytes, stream_)) {
    RankSummary& target = summaries_.emplace_back();
    if (one.size() != sizeof(target)) throw Error(ErrorCode::internal, "a rank's summary has the wrong size");
    std::memcpy(&target, one.data(), sizeof(target));
  }
  if (!job_.trace.empty()) {
    for (const std::string& one : collect_bytes(*comm_, encode_spans(spans), stream_)) {
      spans_.push_back(decode_spans(one));
    }
  }
  if (job_.check) results_ = collect_results(*comm_, plan_->layout(), local_, stream_);
}

}  // namespace tandem::cli
