// SPDX-License-Identifier: Apache-2.0
#include "tandem/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

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
  explicit Check(DsaJob job = small_job()) : job_(std::move(job)), run_(job_, 1, 1) { run_.run({}, false); }
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
