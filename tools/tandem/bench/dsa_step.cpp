// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/dsa_step.hpp"

#include <utility>

#include "dsa/attention_impl.hpp"
#include "tandem/bench/backward_check.hpp"
#include "tandem/bench/kernel_work.hpp"
#include "tandem/bench/loss_check.hpp"
#include "tandem/bench/step_inputs.hpp"

namespace tandem::cli {
namespace {

/// Gradient of the caller's loss by the indexer loss.
constexpr double dloss = 1.0;

void add(std::vector<double>& to, const std::vector<double>& more) {
  to.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) to[i] += more[i];
}

std::vector<double> minus(std::vector<double> from, const std::vector<double>& what) {
  for (std::size_t i = 0; i < from.size(); ++i) from[i] -= what[i];
  return from;
}

void copy_on(const Stream& stream, const Tensor& to, const Tensor& from) {
  if (!to.valid()) return;
  stream.copy(to.data(), from.data(), static_cast<std::size_t>(to.elements()) * size_of(to.dtype()));
}

}  // namespace

DsaStep::DsaStep(const ComputeJob& job, Communicator& comm, std::shared_ptr<KernelSet> kernels, const RowFiller& filler,
                 std::int64_t seq_len)
    : job_(job),
      comm_(comm),
      kernels_(kernels),
      filler_(filler),
      seq_len_(seq_len),
      attention_(comm, kernels, job.config()),
      plan_(job.step(seq_len).layout(comm.size()), comm.rank(),
            job.step(seq_len).plan_options(comm.size(), attention_.plan_options())),
      rows_(make_step_inputs(job.step(seq_len), plan_, comm.device(), job.has_backward())),
      ahead_(std::make_unique<ForwardKernels>(job, plan_, kernels, rows_.inputs, filler)) {
  if (job.has_backward()) {
    back_ = std::make_unique<BackwardKernels>(job, plan_, std::move(kernels), rows_.inputs, rows_.dout, *ahead_,
                                              comm.device());
  }
  attention_.prepare(plan_);
}

void DsaStep::gather(const Stream& stream, const LandedKeys& to) {
  const DsaInputs& in = rows_.inputs;
  std::vector<GatherField> fields;
  if (in.index_k_scale.valid()) fields.push_back({"index_k_scale", in.index_k_scale, to.index_k_scale});
  fields.push_back({"index_k", in.index_k, to.index_k});
  fields.push_back({"kv", in.kv, to.kv});
  gather_ = comm_.gather(plan_, fields, stream);
  gather_.wait(stream);
}

LandedKeys DsaStep::landed() const {
  return {gather_.landed("index_k"), rows_.inputs.index_k_scale.valid() ? gather_.landed("index_k_scale") : Tensor(),
          gather_.landed("kv")};
}

/// The slots change hands with each gather; kernels alone need rows that stay.
void DsaStep::land_for_good(const Stream& stream) {
  run_turn(job_.common, gather_alone(), stream);
  const LandedKeys slot = landed();
  kept_ = {filler_.copy(slot.index_k), filler_.copy(slot.index_k_scale), filler_.copy(slot.kv)};
}

/// Of the landed rows, what the operator keeps from forward until backward.
LandedKeys DsaStep::kept_for_backward() const {
  if (!job_.has_backward()) return {};
  if (!job_.has_loss()) return {{}, {}, kept_.kv};
  return kept_;
}

/// As the operator does after a gather that could not land where its rows stay.
void DsaStep::keep_landed(const Stream& stream) {
  const LandedKeys slot = landed(), keep = kept_for_backward();
  copy_on(stream, keep.kv, slot.kv);
  copy_on(stream, keep.index_k, slot.index_k);
  copy_on(stream, keep.index_k_scale, slot.index_k_scale);
}

/// Of the forward that the kernels alone have done: a backward may use a context once, and this one costs nothing.
DsaContext DsaStep::context_of_kernels() const {
  const auto data = std::make_shared<DsaContext::Data>(plan_);
  data->indices = ahead_->lists().indices;
  data->length = ahead_->lists().length;
  data->out = ahead_->outputs().out;
  data->lse = ahead_->outputs().lse;
  data->kv = kept_.kv;
  data->index_k = kept_.index_k;
  data->index_k_scale = kept_.index_k_scale;
  return DsaContext(data);
}

Turn DsaStep::gather_alone() {
  return {[this](const Stream& stream) { gather(stream, {}); }, {}};
}

Turn DsaStep::reduce_alone() {
  return {[this](const Stream& stream) { back_->reduce(comm_, stream); }, {}};
}

Turn DsaStep::kernels_alone() {
  return {[this](const Stream& stream) {
            if (job_.has_forward()) ahead_->enqueue(kept_, stream);
            if (back_) back_->enqueue(kept_, stream);
          },
          {}};
}

Turn DsaStep::overlap() {
  return {[this](const Stream& stream) {
            if (job_.has_forward()) forward_ = attention_.forward(plan_, rows_.inputs, stream);
            if (!back_) return;
            const DsaContext context = job_.has_forward() ? forward_.context : context_of_kernels();
            backward_ = attention_.backward(context, rows_.inputs, rows_.dout, dloss, stream);
            backward_.reduce.wait(stream);
          },
          // Freeing what the last one left could wait for the GPU, which waits for the host.
          [this] {
            backward_ = {};
            forward_ = {};
          }};
}

Turn DsaStep::blocking() {
  return {[this](const Stream& stream) {
            if (job_.has_forward()) {
              gather(stream, comm_.one_sided() ? LandedKeys{} : kept_for_backward());
              ahead_->enqueue(landed(), stream);
              if (comm_.one_sided()) keep_landed(stream);
            }
            if (!back_) return;
            back_->enqueue(kept_, stream);
            back_->reduce(comm_, stream);
          },
          {}};
}

Turn DsaStep::turn(Schedule schedule) { return schedule == Schedule::overlap ? overlap() : blocking(); }

RowVerdict DsaStep::check_kernels(const Stream& stream, BenchData& data) {
  // Also without a forward that is timed: the backward works on what it left.
  ahead_->poison(stream, data);
  if (back_) back_->poison(stream, data);
  run_turn(job_.common,
           {[this](const Stream& on) {
              ahead_->enqueue(kept_, on);
              if (back_) back_->enqueue(kept_, on);
            },
            {}},
           stream);
  if (plan_.rows() == 0) return {};
  const QueryRows& rows = ahead_->rows();
  const DsaInputs& in = rows_.inputs;
  const IndexTensors index{in.index_q, in.index_w, kept_.index_k, kept_.index_k_scale};
  RowVerdict verdict = check_selection(filler_, job_, rows, index, false, ahead_->lists());
  const AttentionTensors attention{in.q, kept_.kv, ahead_->lists().indices, ahead_->lists().length};
  const AttentionOutputs& out = ahead_->outputs();
  verdict.wrong += check_attention(filler_, job_, rows, attention, out).wrong;
  if (!back_) return verdict;
  const RowVerdict backward = check_backward(filler_, job_, rows, attention, {out.out, out.lse, back_->dout()},
                                             back_->gradients().dq, back_->own_dkv());
  verdict.rows += backward.rows;
  verdict.wrong += backward.wrong;
  if (!job_.has_loss()) return verdict;
  const RowVerdict loss =
      check_loss(filler_, job_, rows, in, kept_, ahead_->lists(), plan_.layout().query_rows(), back_->gradients().loss,
                 back_->gradients().d_index_q, back_->gradients().d_index_w);
  verdict.rows += loss.rows;
  verdict.wrong += loss.wrong;
  return verdict;
}

StepResults DsaStep::results_of(Schedule schedule) const {
  const bool overlap = schedule == Schedule::overlap;
  StepResults results;
  if (job_.has_forward()) {
    const DsaOutputs& o = forward_.outputs;
    const AttentionOutputs& alone = ahead_->outputs();
    if (overlap) results.exact = {o.out, o.lse, o.indices};
    if (!overlap) results.exact = {alone.out, alone.lse, ahead_->global_lists()};
  }
  if (!back_) return results;
  const DsaGradients& g = overlap ? backward_.gradients : back_->gradients();
  results.exact.push_back(g.dq);
  results.sums.push_back(g.dkv);
  if (!job_.has_loss()) return results;
  results.exact.insert(results.exact.end(), {g.loss, g.d_index_q, g.d_index_w});
  results.sums.push_back(g.d_index_k);
  return results;
}

std::int64_t DsaStep::differing_rows(Schedule schedule, const StepSample& wanted, const Stream& stream,
                                     BenchData& data) {
  // Not what a backward without its forward starts from.
  if (job_.has_forward()) ahead_->poison(stream, data);
  if (back_) back_->poison(stream, data);
  const Turn way = turn(schedule);
  run_turn(job_.common, way, stream);
  const StepSample found = take_sample(filler_, results_of(schedule), ahead_->rows());
  return cli::differing_rows(found, wanted, kernels_->deterministic());
}

ComputeRow DsaStep::figures(BenchRanks& ranks) const {
  const QueryRows& rows = ahead_->rows();
  const std::int64_t topk = job_.shape.topk;
  std::vector<Cost> costs;
  if (job_.has_forward()) {
    costs.push_back(indexer_cost(job_, rows));
    costs.push_back(attention_cost(job_, rows, rows.keys));
  }
  if (back_) {
    costs.push_back(attention_backward_cost(job_, rows, rows.keys));
    if (job_.has_loss()) costs.push_back(loss_cost(job_, rows));
  }
  const std::optional<Rates> rates = rates_of(job_.common.device);
  Cost all;
  double floor = 0;
  for (const Cost& cost : costs) {
    all.flops += cost.flops;
    all.bytes += cost.bytes;
    floor += rates ? floor_us(cost, *rates) : 0;
  }
  const DsaInputs& in = rows_.inputs;
  const std::size_t scale = in.index_k_scale.valid() ? sizeof(float) : 0;
  const auto key_bytes = static_cast<double>(in.kv.row_bytes() + in.index_k.row_bytes() + scale);
  const auto gradient_bytes = 4 * static_cast<double>(job_.shape.dim + (job_.has_loss() ? index_dim : 0));
  const auto landed = static_cast<double>(plan_.landed_rows());
  // A reduction brings to the owner what a gather takes from it.
  const auto gathered = job_.has_forward() ? static_cast<double>(plan_.received_rows()) : 0;
  const auto reduced = back_ ? static_cast<double>(plan_.sent_rows()) : 0;
  const std::int64_t pairs = job_.has_forward() ? rows.scored_pairs(topk) : rows.selected(topk);
  // Of the rank that has most of it.
  const std::vector<double> most = ranks.largest(
      {all.flops, all.bytes, floor, static_cast<double>(rows.query_count()),
       static_cast<double>(kernels_->scratch_bytes()), static_cast<double>(pairs), landed * key_bytes,
       gathered * key_bytes + reduced * gradient_bytes, gathered + reduced, back_ ? added_dkv_bytes(job_, rows) : 0});
  ComputeRow row;
  row.keys = seq_len_;
  row.cost = {most[0], false, most[1]};
  if (rates) row.floor_us = most[2];
  row.queries = static_cast<std::int64_t>(most[3]);
  row.scratch = static_cast<std::uint64_t>(most[4]);
  row.pairs = static_cast<std::int64_t>(most[5]);
  row.added_bytes = most[9];
  StepFigures& step = row.step.emplace();
  step.landed_bytes = most[6];
  step.received_bytes = most[7];
  step.received_rows = static_cast<std::int64_t>(most[8]);
  return row;
}

std::vector<ComputeRow> DsaStep::measure(BenchTimer& timer, BenchRanks& ranks, BenchData& data) {
  const Stream& stream = timer.stream();
  land_for_good(stream);
  if (!job_.has_forward()) {
    run_turn(job_.common, {[this](const Stream& on) { ahead_->enqueue(kept_, on); }, {}}, stream);
  }
  std::vector<Turn> turns{kernels_alone()};
  if (job_.has_forward()) turns.push_back(gather_alone());
  if (back_) turns.push_back(reduce_alone());
  const std::size_t alone = turns.size();
  for (const Schedule schedule : job_.schedules) turns.push_back(turn(schedule));
  const std::vector<TurnTimes> times = time_by_turns(job_.common, turns, timer, ranks);
  std::vector<double> communication;
  for (std::size_t t = 1; t < alone; ++t) add(communication, times[t].us);

  RowVerdict verdict;
  StepSample wanted;
  if (job_.common.check) {
    verdict = check_kernels(stream, data);
    if (back_) run_turn(job_.common, reduce_alone(), stream);
    wanted = take_sample(filler_, results_of(Schedule::blocking), ahead_->rows());
  }
  std::vector<ComputeRow> rows;
  for (std::size_t i = 0; i < job_.schedules.size(); ++i) {
    const TurnTimes& time = times[alone + i];
    ComputeRow row = figures(ranks);
    row.us = summarize(time.us);
    row.late = time.late;
    StepFigures& step = *row.step;
    step.schedule = job_.schedules[i];
    step.compute_us = summarize(times[0].us).median;
    step.communication_us = summarize(communication).median;
    if (job_.has_forward()) step.gather_us = summarize(times[1].us).median;
    if (back_) step.reduce_us = summarize(times[alone - 1].us).median;
    step.exposed_us = summarize(minus(time.us, times[0].us)).median;
    if (job_.common.check) {
      row.checked = true;
      RowVerdict mine = verdict;
      mine.wrong += differing_rows(job_.schedules[i], wanted, stream, data);
      const auto sum = [&](std::int64_t value) {
        return static_cast<std::int64_t>(ranks.sum(static_cast<std::uint64_t>(value)));
      };
      row.verdict = {sum(mine.rows), sum(mine.wrong), sum(mine.near_ties), sum(mine.listed), sum(mine.listed_near)};
    }
    rows.push_back(row);
  }
  backward_ = {};
  forward_ = {};
  kernels_->throw_if_failed();
  return rows;
}

}  // namespace tandem::cli
