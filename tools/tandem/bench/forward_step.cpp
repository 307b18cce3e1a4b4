// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/forward_step.hpp"

#include <algorithm>
#include <utility>

#include "tandem/bench/kernel_work.hpp"
#include "tandem/inputs.hpp"
#include "tandem/results.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t rows_to_compare = 64;
constexpr std::int64_t block_rows = 128;  // of inputs made at once by a thread

DsaConfig config_of(const ComputeJob& job) {
  DsaConfig config = config_of(job.shape);
  config.dtype = job.dtype;
  config.index_dtype = job.index_dtype;
  config.keep_landed = false;  // nothing but what a forward needs
  return config;
}

std::vector<Tensor*> tensors_of(DsaInputs& in) {
  return {&in.q, &in.kv, &in.index_q, &in.index_k, &in.index_w, &in.index_k_scale};
}

/// This rank's inputs, as `tandem dsa` has them: blocks of rows in threads, each copied to where it belongs.
DsaInputs make_inputs(const DsaJob& job, const Plan& plan, const Device& device) {
  const SequenceLayout& layout = plan.layout();
  const InputGenerator generator(job);
  std::vector<RowRange> blocks;
  for (const RowRange& segment : layout.segments(plan.rank())) {
    for (std::int64_t begin = segment.begin; begin < segment.end; begin += block_rows)
      blocks.push_back({begin, std::min(begin + block_rows, segment.end)});
  }
  const RowRange none{};
  InputRows like_these = generator.rows(Device::host(), layout, {&none, 1});
  DsaInputs inputs;
  const std::vector<Tensor*> to = tensors_of(inputs), shapes = tensors_of(like_these.inputs);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (shapes[i]->valid()) *to[i] = allocate_like(device, *shapes[i], plan.rows());
  }
  const Stream stream = device.create_stream({.name = "bench-inputs"});
  const std::int64_t at_once = std::int64_t{2} * fill_threads();
  std::int64_t row = 0;
  for (std::int64_t first = 0; first < std::ssize(blocks); first += at_once) {
    const std::int64_t count = std::min(at_once, std::ssize(blocks) - first);
    std::vector<InputRows> made(static_cast<std::size_t>(count));
    in_threads(count, [&](std::int64_t i) {
      const RowRange& block = blocks[static_cast<std::size_t>(first + i)];
      made[static_cast<std::size_t>(i)] = generator.rows(Device::host(), layout, {&block, 1});
    });
    for (InputRows& block : made) {
      const std::vector<Tensor*> from = tensors_of(block.inputs);
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (!from[i]->valid()) continue;
        const std::size_t bytes = from[i]->row_bytes();
        stream.copy(to[i]->data_as<std::byte>() + static_cast<std::size_t>(row) * bytes, from[i]->data(),
                    bytes * static_cast<std::size_t>(from[i]->size(0)));
      }
      row += block.inputs.kv.size(0);
    }
    stream.synchronize(Deadline::after(std::chrono::minutes(5)));
  }
  return inputs;
}

}  // namespace

ForwardStep::ForwardStep(const ComputeJob& job, Communicator& comm, std::shared_ptr<KernelSet> kernels,
                         const RowFiller& filler, std::int64_t seq_len)
    : job_(job),
      comm_(comm),
      kernels_(kernels),
      filler_(filler),
      seq_len_(seq_len),
      plan_(job.step(seq_len).layout(comm.size()), comm.rank(), job.step(seq_len).plan_options(comm.size())),
      inputs_(make_inputs(job.step(seq_len), plan_, comm.device())),
      attention_(comm, kernels, config_of(job)),
      alone_(std::make_unique<ForwardKernels>(job, plan_, std::move(kernels), inputs_, filler)) {
  attention_.prepare(plan_);
}

void ForwardStep::gather(const Stream& stream) {
  std::vector<GatherField> fields;
  if (inputs_.index_k_scale.valid()) fields.push_back({"index_k_scale", inputs_.index_k_scale, {}});
  fields.push_back({"index_k", inputs_.index_k, {}});
  fields.push_back({"kv", inputs_.kv, {}});
  gather_ = comm_.gather(plan_, fields, stream);
  gather_.wait(stream);
}

LandedKeys ForwardStep::landed() const {
  return {gather_.landed("index_k"), inputs_.index_k_scale.valid() ? gather_.landed("index_k_scale") : Tensor(),
          gather_.landed("kv")};
}

/// The slots change hands with each gather; kernels alone need rows that stay.
void ForwardStep::land_for_good(const Stream& stream) {
  run_turn(job_.common, gather_alone(), stream);
  const LandedKeys slot = landed();
  kept_ = {filler_.copy(slot.index_k), filler_.copy(slot.index_k_scale), filler_.copy(slot.kv)};
}

Turn ForwardStep::gather_alone() {
  return {[this](const Stream& stream) { gather(stream); }, {}};
}

Turn ForwardStep::kernels_alone() {
  return {[this](const Stream& stream) { alone_->enqueue(kept_, stream); }, {}};
}

Turn ForwardStep::turn(Schedule schedule) {
  if (schedule == Schedule::overlap) {
    // Freeing what the last one left could wait for the GPU, which waits for the host.
    return {[this](const Stream& stream) { forward_ = attention_.forward(plan_, inputs_, stream); },
            [this] { forward_ = {}; }};
  }
  return {[this](const Stream& stream) {
            gather(stream);
            alone_->enqueue(landed(), stream);
          },
          {}};
}

ForwardStep::Sample ForwardStep::sample(const Tensor& out, const Tensor& lse, const Tensor& global) const {
  Sample all;
  const std::int64_t count = std::min(rows_to_compare, plan_.rows());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = count == 1 ? 0 : (plan_.rows() - 1) * i / (count - 1);
    std::vector<std::byte>& bytes = all.emplace_back();
    for (const Tensor* t : {&out, &lse, &global}) {
      const Tensor here = filler_.fetch(*t, row, 1);
      bytes.insert(bytes.end(), here.data_as<std::byte>(), here.data_as<std::byte>() + here.row_bytes());
    }
  }
  return all;
}

RowVerdict ForwardStep::check_kernels(const Stream& stream, BenchData& data) {
  if (plan_.rows() == 0) return {};
  alone_->poison(stream, data);
  run_turn(job_.common, kernels_alone(), stream);
  const QueryRows& rows = alone_->rows();
  const IndexTensors index{inputs_.index_q, inputs_.index_w, kept_.index_k, kept_.index_k_scale};
  RowVerdict verdict = check_selection(filler_, job_, rows, index, false, alone_->lists());
  const AttentionTensors attention{inputs_.q, kept_.kv, alone_->lists().indices, alone_->lists().length};
  verdict.wrong += check_attention(filler_, job_, rows, attention, alone_->outputs()).wrong;
  return verdict;
}

std::int64_t ForwardStep::differing_rows(Schedule schedule, const Sample& wanted, const Stream& stream,
                                         BenchData& data) {
  alone_->poison(stream, data);
  run_turn(job_.common, turn(schedule), stream);
  const bool overlap = schedule == Schedule::overlap;
  const Sample found = overlap ? sample(forward_.outputs.out, forward_.outputs.lse, forward_.outputs.indices)
                               : sample(alone_->outputs().out, alone_->outputs().lse, alone_->global_lists());
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) differ += found[i] == wanted[i] ? 0 : 1;
  return differ;
}

ComputeRow ForwardStep::figures(BenchRanks& ranks) const {
  const QueryRows& rows = alone_->rows();
  const Cost indexer = indexer_cost(job_, rows);
  const Cost attention = attention_cost(job_, rows, rows.keys);
  const std::optional<Rates> rates = rates_of(job_.common.device);
  const auto key_bytes = [&](std::int64_t count) {
    const DsaInputs& in = inputs_;
    const std::size_t scale = in.index_k_scale.valid() ? sizeof(float) : 0;
    return static_cast<double>(count) * static_cast<double>(in.kv.row_bytes() + in.index_k.row_bytes() + scale);
  };
  // Of the rank that has most of it.
  const std::vector<double> most = ranks.largest(
      {indexer.flops + attention.flops, indexer.bytes + attention.bytes,
       rates ? floor_us(indexer, *rates) + floor_us(attention, *rates) : 0, static_cast<double>(rows.rows),
       static_cast<double>(kernels_->scratch_bytes()), static_cast<double>(rows.scored_pairs(job_.shape.topk)),
       key_bytes(plan_.landed_rows()), key_bytes(plan_.received_rows()), static_cast<double>(plan_.received_rows())});
  ComputeRow row;
  row.keys = seq_len_;
  row.cost = {most[0], indexer.e4m3, most[1]};
  if (rates) row.floor_us = most[2];
  row.queries = static_cast<std::int64_t>(most[3]);
  row.scratch = static_cast<std::uint64_t>(most[4]);
  row.pairs = static_cast<std::int64_t>(most[5]);
  StepFigures& step = row.step.emplace();
  step.landed_bytes = most[6];
  step.received_bytes = most[7];
  step.received_rows = static_cast<std::int64_t>(most[8]);
  return row;
}

std::vector<ComputeRow> ForwardStep::measure(BenchTimer& timer, BenchRanks& ranks, BenchData& data) {
  const Stream& stream = timer.stream();
  land_for_good(stream);
  std::vector<Turn> turns{kernels_alone(), gather_alone()};
  for (const Schedule schedule : job_.schedules) turns.push_back(turn(schedule));
  const std::vector<TurnTimes> times = time_by_turns(job_.common, turns, timer, ranks);

  RowVerdict verdict;
  Sample wanted;
  if (job_.common.check) {
    verdict = check_kernels(stream, data);
    wanted = sample(alone_->outputs().out, alone_->outputs().lse, alone_->global_lists());
  }
  std::vector<ComputeRow> rows;
  for (std::size_t i = 0; i < job_.schedules.size(); ++i) {
    const TurnTimes& time = times[2 + i];
    ComputeRow row = figures(ranks);
    row.us = summarize(time.us);
    row.late = time.late;
    row.step->schedule = job_.schedules[i];
    row.step->compute_us = summarize(times[0].us).median;
    row.step->communication_us = summarize(times[1].us).median;
    std::vector<double> beyond;
    for (std::size_t n = 0; n < time.us.size(); ++n) beyond.push_back(time.us[n] - times[0].us[n]);
    row.step->exposed_us = summarize(beyond).median;
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
  forward_ = {};
  kernels_->throw_if_failed();
  return rows;
}

}  // namespace tandem::cli
