// SPDX-License-Identifier: Apache-2.0
// What `tandem bench` of kernels is made of: inputs, checks, floors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include "tandem/bench/backward_check.hpp"
#include "tandem/bench/backward_kernels.hpp"
#include "tandem/bench/compute_report.hpp"
#include "tandem/bench/kernel_inputs.hpp"
#include "tandem/bench/kernel_work.hpp"
#include "tandem/bench/loss_check.hpp"
#include "tandem/bench/query_rows.hpp"
#include "tandem/bench/row_check.hpp"
#include "tandem/bench/step_inputs.hpp"
#include "tandem/bench/step_sample.hpp"
#include "unit/dsa/forwarding_kernels.hpp"

namespace tandem::cli {
namespace {

ComputeJob job_of(const std::string& operation, const std::function<void(BenchArguments&)>& change = {}) {
  BenchArguments a;
  a.operation = operation;
  if (change) change(a);
  return make_compute_job(*compute_operation(operation), a, std::nullopt);
}

TEST(ComputeOptions, Defaults) {
  const ComputeJob kernel = job_of("indexer");
  EXPECT_EQ(kernel.common.ranks, 1);
  EXPECT_EQ(kernel.model, "tiny");
  EXPECT_EQ(kernel.seq_lens, std::vector<std::int64_t>{1024});
  ASSERT_EQ(kernel.queries.size(), 1U);
  EXPECT_EQ(kernel.queries[0].queries, 128);
  EXPECT_EQ(kernel.patterns, std::vector<Pattern>{Pattern::random});
  EXPECT_EQ(kernel.index_dtype, DType::bf16);
  const ComputeJob step = job_of("dsa-fwd", [](BenchArguments& a) { a.model = "glm-5"; });
  EXPECT_EQ(step.common.ranks, 2);
  EXPECT_EQ(step.shape.index_heads, 32);
  EXPECT_EQ(step.schedules, (std::vector<Schedule>{Schedule::overlap, Schedule::blocking}));
  EXPECT_FALSE(compute_operation("gather"));
  EXPECT_FALSE(step.has_backward());
  EXPECT_FALSE(step.config().keep_landed);
  const ComputeJob back = job_of("dsa-bwd", [](BenchArguments& a) { a.loss = "sparse"; });
  EXPECT_FALSE(back.has_forward());
  EXPECT_TRUE(back.has_backward());
  EXPECT_EQ(back.config().loss, IndexerLossKind::sparse);
  EXPECT_TRUE(back.config().keep_landed);
  const ComputeJob whole = job_of("dsa-step");
  EXPECT_TRUE(whole.has_forward() && whole.has_backward());
  EXPECT_FALSE(whole.has_loss());
  EXPECT_EQ(job_of("sparse-bwd").patterns, std::vector<Pattern>{Pattern::random});
}

TEST(Floors, TheLargerOfOperationsAndBytes) {
  const Rates rates;
  EXPECT_DOUBLE_EQ(floor_us({790e6, false, 1}, rates), 1);
  EXPECT_DOUBLE_EQ(floor_us({1500e6, true, 1}, rates), 1);
  EXPECT_DOUBLE_EQ(floor_us({790e6, false, 8.6e6}, rates), 2);
  EXPECT_FALSE(rates_of(DeviceKind::host));
  ComputeRow row;
  row.us.median = 4;
  row.floor_us = 1;
  row.cost = {8e6, false, 4000};
  EXPECT_DOUBLE_EQ(*row.of_floor(), 0.25);
  EXPECT_DOUBLE_EQ(row.teraflops(), 2);
  EXPECT_DOUBLE_EQ(row.gigabytes(), 1);
  StepFigures step;
  step.communication_us = 10;
  step.exposed_us = 4;
  EXPECT_FALSE(step.hidden());
  step.received_rows = 1;
  EXPECT_DOUBLE_EQ(*step.hidden(), 0.6);
}

TEST(QueryRows, FloorsOfTheNotesFollowFromThem) {
  // One rank of two, 65536 tokens, DeepSeek-V3.2: 22.3 ms of scores and 23.3 ms of attention at 790 TFLOP/s.
  const ComputeJob job = job_of("indexer", [](BenchArguments& a) { a.model = "deepseek-v3.2"; });
  const QueryRows rows = make_query_rows(RowFiller(Device::host()), {0, 2}, 65536);
  EXPECT_EQ(rows.rows, 32768);
  EXPECT_EQ(rows.keys, 65536);
  EXPECT_NEAR(floor_us(indexer_cost(job, rows), Rates{}), 22.3e3, 100);
  EXPECT_NEAR(floor_us(attention_cost(job, rows, rows.keys), Rates{}), 23.3e3, 400);
  // And 58.9 ms of backward, whose rows of dkv are 152 GB; rank 0 has a little less of both than the mean.
  EXPECT_NEAR(floor_us(attention_backward_cost(job, rows, rows.keys), Rates{}), 58.9e3, 1e3);
  EXPECT_NEAR(added_dkv_bytes(job, rows), 152e9, 3e9);
}

TEST(KernelInputs, ListsAreDistinctVisibleAndAsNearAsTheirPattern) {
  const RowFiller filler(Device::host());
  for (const Pattern pattern : {Pattern::random, Pattern::text}) {
    for (const QueryChoice choice : {QueryChoice{20, 0}, {0, 64}}) {
      const ComputeJob job = job_of("sparse-fwd", [](BenchArguments& a) {
        a.topk = "500";
        a.heads = "1";
      });
      const QueryRows rows = make_query_rows(filler, choice, 30000);
      const AttentionTensors in = make_attention_tensors(filler, job, rows, pattern);
      std::set<std::int32_t> touched;
      for (std::int64_t t = 0; t < rows.rows; ++t) {
        const std::int32_t* const list = in.indices.data_as<std::int32_t>() + 500 * t;
        const std::int64_t length = in.length.data_as<std::int32_t>()[t];
        ASSERT_EQ(length, std::min<std::int64_t>(500, rows.visible(t)));
        const std::int64_t position = rows.position[static_cast<std::size_t>(t)];
        std::int64_t near = 0;
        for (std::int64_t i = 0; i < length; ++i) {
          ASSERT_GE(list[i], i == 0 ? rows.key_begin[static_cast<std::size_t>(t)] : list[i - 1] + 1);
          ASSERT_LT(list[i], rows.key_end[static_cast<std::size_t>(t)]);
          near += list[i] >= position - text_window && list[i] < position ? 1 : 0;
          touched.insert(list[i]);
        }
        for (std::int64_t i = length; i < 500; ++i) ASSERT_EQ(list[i], -1);
        if (pattern == Pattern::text && position > 2 * text_window) {
          EXPECT_EQ(near, 400) << t;
        }
      }
      EXPECT_EQ(in.touched_keys, std::ssize(touched));
    }
  }
}

// Selects, attends, and then changes one entry of the first row.
class Faulty final : public testing::ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;
  void indexer_topk(const IndexerStep& step, const IndexerInputs& in, const TopkState& state, const TopkLists& out,
                    const Stream& stream) override {
    ForwardingKernels::indexer_topk(step, in, state, out, stream);
    spoil(out, in.index_k.size(0), stream);
  }
  void select_topk(const ScoreMatrix& in, const TopkLists& out, const Stream& stream) override {
    ForwardingKernels::select_topk(in, out, stream);
    spoil(out, in.scores.size(1), stream);
  }
  void sparse_mla_forward(const AttentionInputs& in, const AttentionOutputs& out, const Stream& stream) override {
    ForwardingKernels::sparse_mla_forward(in, out, stream);
    stream.run([out] { out.lse.data_as<float>()[0] += 0.01F; });
  }
  // The first row of dq is zeroed, and the last key's dkv.
  void sparse_mla_backward(RowRange rows, const AttentionInputs& in, const AttentionGradients& grads,
                           const Stream& stream) override {
    ForwardingKernels::sparse_mla_backward(rows, in, grads, stream);
    stream.run([grads] {
      std::memset(grads.dq.data(), 0, grads.dq.row_bytes());
      const std::int64_t last = grads.dkv.size(0) - 1;
      std::memset(grads.dkv.data_as<std::byte>() + static_cast<std::size_t>(last) * grads.dkv.row_bytes(), 0,
                  grads.dkv.row_bytes());
    });
  }

 private:
  // Another key instead of the first: the one before or after it that is not in the list.
  static void spoil(const TopkLists& out, std::int64_t keys, const Stream& stream) {
    stream.run([out, keys] {
      auto* const list = out.indices.data_as<std::int32_t>();
      const std::int32_t length = *out.length.data_as<std::int32_t>();
      for (std::int32_t key = 0; key < keys; ++key) {
        if (std::find(list, list + length, key) != list + length) continue;
        list[0] = key;
        break;
      }
      std::sort(list, list + length);
    });
  }
};

TEST(RowCheck, FindsWhatIsWrongAndNothingElse) {
  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const RowFiller filler(device);
  const std::unique_ptr<BenchData> data = make_data(device);
  const auto deadline = [] { return Deadline::after(std::chrono::seconds(30)); };
  const auto right = cpu_kernels({.threads = 1});
  for (const std::string operation : {"indexer", "topk", "sparse-fwd", "sparse-bwd"}) {
    for (const Pattern pattern : {Pattern::random, Pattern::text, Pattern::ascending, Pattern::equal}) {
      const ComputeJob job = job_of(operation);
      const bool backward = operation == "sparse-bwd";
      if ((operation == "sparse-fwd" || backward) && pattern > Pattern::text) continue;
      // Of so few keys each is in a list.
      const QueryRows rows = make_query_rows(filler, {20, 0}, backward ? 100 : 300);
      const auto wrong_with = [&](const std::shared_ptr<KernelSet>& kernels, bool run) {
        const auto work = make_kernel_work(job, rows, pattern, kernels, filler);
        work->poison(stream, *data);
        if (run) work->enqueue(stream);
        stream.synchronize(deadline());
        return work->check().wrong;
      };
      SCOPED_TRACE(operation + " " + to_string(pattern));
      EXPECT_EQ(wrong_with(right, true), 0);
      // Of the backward: a row of its forward, one of dq, one of dkv.
      EXPECT_EQ(wrong_with(std::make_shared<Faulty>(right), true), backward ? 3 : 1);
      // Nothing was written. The attention's lists are inputs.
      EXPECT_EQ(wrong_with(right, false),
                std::ssize(rows_to_check(rows)) + (backward ? std::ssize(keys_to_check(rows)) : 0));
    }
  }
}

TEST(RowCheck, LooksAtTheFirstAndTheLastRow) {
  const RowFiller filler(Device::host());
  EXPECT_EQ(rows_to_check(make_query_rows(filler, {1, 0}, 5)), std::vector<std::int64_t>{0});
  const std::vector<std::int64_t> many = rows_to_check(make_query_rows(filler, {1000, 0}, 5));
  EXPECT_EQ(many.front(), 0);
  EXPECT_EQ(many.back(), 999);
  EXPECT_TRUE(std::is_sorted(many.begin(), many.end()));
}

TEST(StepSample, BitsOfRowsAndSumsWithinAnotherOrder) {
  const StepSample wanted{{{std::byte{1}}, {std::byte{2}}}, {{1.0F, 2.0F}, {3.0F, 4.0F}}};
  EXPECT_EQ(differing_rows(wanted, wanted, true), 0);
  StepSample bit = wanted;
  bit.exact[0][0] = std::byte{3};
  EXPECT_EQ(differing_rows(bit, wanted, false), 1);
  StepSample order = wanted;
  order.sums[1][0] += 1e-6F;
  EXPECT_EQ(differing_rows(order, wanted, true), 1);
  EXPECT_EQ(differing_rows(order, wanted, false), 0);
  order.sums[1][0] += 0.1F;
  EXPECT_EQ(differing_rows(order, wanted, false), 1);
  order.sums[1][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(differing_rows(order, wanted, false), 1);
}

TEST(LossCheck, FindsWhatIsWrongAndNothingElse) {
  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const RowFiller filler(device);
  for (const std::string dtype : {"bf16", "e4m3"}) {
    SCOPED_TRACE(dtype);
    const ComputeJob job = job_of("dsa-step", [&](BenchArguments& a) {
      a.loss = "sparse";
      a.ranks = "1";
      a.index_dtype = dtype;
    });
    const Plan plan(job.step(150).layout(1), 0, job.step(150).plan_options(1, {}));
    const InputRows in = make_step_inputs(job.step(150), plan, device, true);
    const LandedKeys landed{in.inputs.index_k, in.inputs.index_k_scale, in.inputs.kv};
    const auto kernels = cpu_kernels({.threads = 1});
    ForwardKernels ahead(job, plan, kernels, in.inputs, filler);
    BackwardKernels back(job, plan, kernels, in.inputs, in.dout, ahead, device);
    ahead.enqueue(landed, stream);
    back.enqueue(landed, stream);
    stream.synchronize(Deadline::after(std::chrono::seconds(30)));
    const DsaGradients& g = back.gradients();
    const auto wrong = [&] {
      return check_loss(filler, job, ahead.rows(), in.inputs, landed, ahead.lists(), 150, g.loss, g.d_index_q,
                        g.d_index_w)
          .wrong;
    };
    EXPECT_EQ(wrong(), 0);
    g.d_index_w.data_as<float>()[job.shape.index_heads * 149] += 1.0F;
    EXPECT_EQ(wrong(), 1);
    g.loss.data_as<double>()[0] += 0.01;
    EXPECT_EQ(wrong(), 2);
  }
}

}  // namespace
}  // namespace tandem::cli
