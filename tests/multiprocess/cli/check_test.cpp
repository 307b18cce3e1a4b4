// SPDX-License-Identifier: Apache-2.0
#include "tandem/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "tandem/rank_run.hpp"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

DsaJob small_job(DType dtype = DType::f32) {
  DsaJob job;
  job.ranks = 1;
  job.shape = {2, 1, 576, 8};
  job.lengths = {24, 5};
  job.pad_to = 26;
  job.dtype = dtype;
  job.check = true;
  return job;
}

// What one rank computes, for tests to spoil.
class Check : public ::testing::Test {
 protected:
  explicit Check(DsaJob job = small_job()) : job_(std::move(job)), run_(job_, 1, 0, 1) { run_.run({}, false); }
  const Results& results() const { return run_.results(); }
  std::vector<std::string> faults() const { return check(job_, results()).faults(); }
  template <class T>
  static T& element(const Tensor& t, std::int64_t row, std::int64_t column = 0) {
    return t.data_as<T>()[row * t.row_elements() + column];
  }
  static constexpr std::int64_t pad = 25;

  DsaJob job_;
  RankRun run_;
};

TEST_F(Check, PassesWhatIsRight) {
  const CheckResult result = check(job_, results());
  EXPECT_THAT(result.faults(), ElementsAre());
  EXPECT_EQ(result.checked_rows, 29);
  EXPECT_EQ(result.rows, 29);
  EXPECT_GT(result.loss, 0.0);
  EXPECT_EQ(result.errors.size(), 8U);
  for (const TensorError& e : result.errors) {
    EXPECT_LE(e.error, 2e-5) << e.name;
    EXPECT_EQ(e.bound, 2e-5) << e.name;
  }
}

TEST_F(Check, FindsASpoiltTensor) {
  const DsaOutputs& o = results().outputs;
  const DsaGradients& g = results().gradients;
  const std::pair<const Tensor*, const char*> tensors[] = {{&o.out, "out"},
                                                           {&o.lse, "lse"},
                                                           {&g.dq, "dq"},
                                                           {&g.dkv, "dkv"},
                                                           {&g.d_index_q, "d_index_q"},
                                                           {&g.d_index_k, "d_index_k"},
                                                           {&g.d_index_w, "d_index_w"}};
  for (const auto& [tensor, name] : tensors) {
    float& value = element<float>(*tensor, 20);
    const float good = value;
    value += 0.1F;
    EXPECT_THAT(faults(), ElementsAre(StartsWith(std::string(name) + ": error"))) << name;
    value = NAN;
    EXPECT_THAT(faults(), ElementsAre(StartsWith(std::string(name) + ": error inf"))) << name;
    value = good;
  }
  element<double>(o.loss, 20) *= 1.5;
  EXPECT_THAT(faults(), ElementsAre(StartsWith("loss: error")));
}

// A job of many heads whose inputs put an argument of relu within rounding of 0, where the gradient jumps by much.
struct JobWithKink {
  DsaJob job = small_job();
  reference::Problem problem;
  reference::Kink kink;
  std::int64_t position = 0;  // of its row in the batch
};
std::optional<JobWithKink> find_kink() {
  JobWithKink found;
  found.job.shape.index_heads = 16;
  const SequenceLayout layout = found.job.layout(1);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < layout.total_rows(); ++row) {
    if (layout.is_real(row)) rows.push_back(row);
  }
  for (found.job.seed = 1; found.job.seed <= 200; ++found.job.seed) {
    found.problem = make_problem(found.job, layout, rows);
    const reference::Lists lists = reference::topk_lists(found.problem);
    const auto loss = reference::indexer_loss(found.problem, &lists, {0, found.problem.rows});
    for (const reference::Kink& kink : loss.kinks) {
      if (std::fabs(kink.jump) < 1e-4) continue;
      found.kink = kink;
      found.position = rows[static_cast<std::size_t>(kink.row)];
      return found;
    }
  }
  return std::nullopt;
}

// Adds `factor` jumps of the kink to both gradients.
void move(const JobWithKink& at, const DsaGradients& g, double factor) {
  const std::int64_t heads = at.job.shape.index_heads;
  float* d_index_q = g.d_index_q.data_as<float>() + (at.position * heads + at.kink.head) * 128;
  float* d_index_k = g.d_index_k.data_as<float>() + at.kink.key * 128;
  const float* q = at.problem.index_q.data() + (at.kink.row * heads + at.kink.head) * 128;
  const float* k = at.problem.index_k.data() + at.kink.key * 128;
  for (std::int64_t c = 0; c < 128; ++c) {
    d_index_q[c] += static_cast<float>(factor * at.kink.jump * static_cast<double>(k[c]));
    d_index_k[c] += static_cast<float>(factor * at.kink.jump * static_cast<double>(q[c]));
  }
}

TEST(CheckKinks, EitherSideOfAKinkIsRightAndHalfOfItIsNot) {
  const std::optional<JobWithKink> found = find_kink();
  ASSERT_TRUE(found);
  RankRun run(found->job, 1, 0, 1);
  run.run({}, false);
  const DsaGradients& gradients = run.results().gradients;
  const CheckResult before = check(found->job, run.results());
  EXPECT_THAT(before.faults(), ElementsAre());
  // The ranks' side is the reference's, or it is the other.
  const double to_other_side = before.relu_near_ties == 0 ? 1 : -1;
  move(*found, gradients, to_other_side);
  const CheckResult after = check(found->job, run.results());
  EXPECT_THAT(after.faults(), ElementsAre());
  EXPECT_EQ(before.relu_near_ties + after.relu_near_ties, 1);
  move(*found, gradients, -to_other_side / 2);
  EXPECT_THAT(check(found->job, run.results()).faults(),
              ElementsAre(StartsWith("d_index_q: error"), StartsWith("d_index_k: error")));
}

TEST_F(Check, FindsAWrongSelection) {
  // Row 20 sees 21 keys and selects 8: put one that it did not select in place of one that it did.
  const Tensor& indices = results().outputs.indices;
  std::int32_t* list = &element<std::int32_t>(indices, 20);
  const std::vector<std::int32_t> good(list, list + 8);
  int changed = 0;
  for (std::int32_t stranger = 0; stranger <= 20; ++stranger) {
    std::vector<std::int32_t> other = good;
    if (std::find(good.begin(), good.end(), stranger) != good.end()) continue;
    other[3] = stranger;
    std::sort(other.begin(), other.end());
    std::copy(other.begin(), other.end(), list);
    EXPECT_EQ(check(job_, results()).topk_mismatches, 1) << stranger;
    ++changed;
  }
  EXPECT_EQ(changed, 13);
}

TEST_F(Check, FindsAMalformedList) {
  const Tensor& indices = results().outputs.indices;
  for (const std::int32_t bad : {-1, 21, 1 << 30, -7}) {  // beyond the row, or no position at all
    std::int32_t& entry = element<std::int32_t>(indices, 20, 5);
    const std::int32_t good = entry;
    entry = bad;
    EXPECT_EQ(check(job_, results()).topk_mismatches, 1) << bad;
    entry = good;
  }
  std::swap(element<std::int32_t>(indices, 20, 0), element<std::int32_t>(indices, 20, 1));  // not ascending
  EXPECT_GE(check(job_, results()).topk_mismatches, 1);
  std::swap(element<std::int32_t>(indices, 20, 0), element<std::int32_t>(indices, 20, 1));
  element<std::int32_t>(results().outputs.length, 3) = 2;  // it sees 4 and takes all
  EXPECT_EQ(check(job_, results()).topk_mismatches, 1);
}

TEST_F(Check, FindsAPadThatIsNotZero) {
  const DsaOutputs& o = results().outputs;
  const DsaGradients& g = results().gradients;
  for (const Tensor* tensor : {&o.out, &o.lse, &g.dq, &g.dkv, &g.d_index_q, &g.d_index_k, &g.d_index_w}) {
    float& value = element<float>(*tensor, pad);
    const float good = value;
    value = 1e-30F;
    EXPECT_EQ(check(job_, results()).dead_row_faults, 1);
    value = NAN;
    EXPECT_EQ(check(job_, results()).dead_row_faults, 1);
    value = good;
  }
  element<std::int32_t>(o.indices, pad) = 24;
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("1 pad rows")));
}

class CheckBf16 : public Check {
 protected:
  CheckBf16() : Check(small_job(DType::bf16)) {}
};

TEST_F(CheckBf16, IsHeldToTwiceTheUnshardedError) {
  const CheckResult result = check(job_, results());
  EXPECT_TRUE(result.ok());
  for (const TensorError& e : result.errors) {
    if (e.bound > 2e-5) {
      EXPECT_DOUBLE_EQ(e.bound, 2 * e.error) << e.name;  // this is the unsharded run
    }
  }
  element<float>(results().gradients.dkv, 20) += 10.0F;
  EXPECT_THAT(faults(), ElementsAre(StartsWith("dkv: error")));
}

TEST_F(CheckBf16, NoticesThatSetsDifferFromTheUnshardedRun) {
  std::int32_t& first = element<std::int32_t>(results().outputs.indices, 20);
  first = first == 0 ? 1 : 0;
  EXPECT_TRUE(check(job_, results()).unsharded_sets_differ);
}

}  // namespace
}  // namespace tandem::cli
