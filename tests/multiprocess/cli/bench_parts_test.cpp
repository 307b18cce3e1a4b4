// SPDX-License-Identifier: Apache-2.0
// What `tandem bench` is made of: statistics, options, the loop over contenders, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tandem/bench/data.hpp"
#include "tandem/bench/figures.hpp"
#include "tandem/bench/options.hpp"
#include "tandem/bench/pattern.hpp"
#include "tandem/bench/report.hpp"
#include "tandem/bench/run.hpp"
#include "tandem/usage.hpp"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(BenchFigures, OfSamplesInAnyOrder) {
  const Summary s = summarize({4, 1, 3, 2});
  EXPECT_EQ(s.count, 4U);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.p95, 4);
  EXPECT_DOUBLE_EQ(s.cv, std::sqrt(1.25) / 2.5);  // squares of -1.5, -0.5, 0.5, 1.5, over 4
  EXPECT_DOUBLE_EQ(summarize({7}).median, 7);
  EXPECT_DOUBLE_EQ(summarize({7}).p95, 7);
  EXPECT_DOUBLE_EQ(summarize({7}).cv, 0);
  EXPECT_DOUBLE_EQ(summarize({9, 1, 5}).median, 5);
  EXPECT_EQ(summarize({}).count, 0U);
}

TEST(BenchFigures, NineteenOfTwentyAreNotAboveTheP95) {
  std::vector<double> twenty, hundred;
  for (int i = 1; i <= 100; ++i) {
    if (i <= 20) twenty.push_back(i);
    hundred.push_back(i);
  }
  EXPECT_DOUBLE_EQ(summarize(twenty).p95, 19);
  EXPECT_DOUBLE_EQ(summarize(hundred).p95, 95);
  hundred.push_back(101);
  EXPECT_DOUBLE_EQ(summarize(hundred).p95, 96);
}

TEST(BenchFigures, Rates) {
  BenchRow row;
  row.volume = {8'000'000, 4'000'000, 4'000'000};
  row.us.median = 100;
  EXPECT_DOUBLE_EQ(row.algorithm_rate(), 80);  // 8 MB in 100 us
  EXPECT_DOUBLE_EQ(row.bus_rate(), 40);
  row.us.median = 0;
  EXPECT_DOUBLE_EQ(row.bus_rate(), 0);
  BesideFigures beside;
  EXPECT_DOUBLE_EQ(beside.slow_down(), 0);
  beside.gemm_alone_us = 5000;
  beside.gemm_beside_us = 5100;
  EXPECT_DOUBLE_EQ(beside.slow_down(), 2);
}

BenchArguments on_gpu(const std::string& operation) {
  BenchArguments a;
  a.operation = operation;
  a.device = "cuda";
  a.transport = "tcp";  // in every build
  return a;
}

TEST(BenchOptions, Comparisons) {
  BenchArguments a = on_gpu("gather");
  a.versus = "nccl";
  a.beside = "gemm";
  a.graph_launches = "7";
  a.slow_link = "3";
  BenchJob job = make_bench_job(a, std::nullopt);
  EXPECT_TRUE(job.versus_nccl);
  EXPECT_EQ(job.gemms, 4);
  EXPECT_EQ(job.graph_launches, 7);
  EXPECT_EQ(job.slow_link, 3);
  a.beside = "gemm:9";
  EXPECT_EQ(make_bench_job(a, std::nullopt).gemms, 9);
  job = make_bench_job(on_gpu("gather"), std::nullopt);
  EXPECT_FALSE(job.versus_nccl);
  EXPECT_EQ(job.gemms, 0);
  EXPECT_EQ(job.graph_launches, 0);
  EXPECT_EQ(job.slow_link, 1);
}

TEST(BenchOptions, EachErrorNamesItsOption) {
  const auto error_of = [](const std::function<void(BenchArguments&)>& change) {
    BenchArguments a = on_gpu("gather");
    change(a);
    try {
      make_bench_job(a, std::nullopt);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error_of([](auto& a) { a.versus = "mpi"; }), HasSubstr("--versus: 'mpi'"));
  EXPECT_THAT(error_of([](auto& a) {
                a.operation = "exchange";
                a.versus = "nccl";
              }),
              HasSubstr("--versus: nccl has no counterpart of an exchange"));
  EXPECT_THAT(error_of([](auto& a) { a.beside = "conv"; }), HasSubstr("--beside: 'conv'"));
  EXPECT_THAT(error_of([](auto& a) { a.beside = "gemm:0"; }), HasSubstr("--beside: 0 is too small"));
  EXPECT_THAT(error_of([](auto& a) { a.beside = "gemm:"; }), HasSubstr("--beside: ''"));
  EXPECT_THAT(error_of([](auto& a) { a.slow_link = "0"; }), HasSubstr("--slow-link: 0 is too small"));
  EXPECT_THAT(error_of([](auto& a) {
                a.slow_link = "2";
                a.transport = "loopback";
              }),
              HasSubstr("--slow-link: transport loopback"));
  EXPECT_THAT(error_of([](auto& a) { a.output_file = "/no/such/folder/x.json"; }), HasSubstr("--output_file:"));
  for (const char* option : {"--versus", "--beside", "--cudagraph"}) {
    EXPECT_THAT(error_of([&](auto& a) {
                  a.device = "host";
                  (option[2] == 'v'   ? a.versus
                   : option[2] == 'b' ? a.beside
                                      : a.graph_launches) = option[2] == 'v'   ? "nccl"
                                                            : option[2] == 'b' ? "gemm"
                                                                               : "1";
                }),
                HasSubstr(std::string(option) + ": only with --device cuda"));
  }
}

TEST(BenchData, FindsEveryByteAndEverySumThatDiffers) {
  const Device device = Device::host();
  const Stream stream = device.create_stream();
  const std::unique_ptr<BenchData> data = make_data(device);
  const auto deadline = [] { return Deadline::after(std::chrono::seconds(10)); };
  std::vector<std::uint8_t> bytes(1003);  // no multiple of 8
  data->fill(stream, bytes.data(), bytes.size(), 16, 5);
  data->check(stream, bytes.data(), bytes.size(), 16, 5);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 0U);
  for (const std::size_t i : {0U, 500U, 1002U}) bytes[i] ^= 1U;
  data->check(stream, bytes.data(), bytes.size(), 16, 5);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 3U);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 0U) << "counted twice";
  data->check(stream, bytes.data(), bytes.size(), 16, 6);
  EXPECT_GT(data->take_wrong(stream, deadline()), bytes.size() * 9 / 10) << "another salt is other data";

  std::vector<float> sums(40), terms(40);
  for (int rank = 1; rank < 4; ++rank) {
    data->fill_terms(stream, terms.data(), terms.size(), 100, rank, 9);
    stream.synchronize(deadline());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
  }
  data->check_sums(stream, sums.data(), sums.size(), 100, 1, 4, 9);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 0U);
  sums[7] += 1;
  data->check_sums(stream, sums.data(), sums.size(), 100, 1, 4, 9);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 1U);
  data->poison(stream, sums.data(), sums.size() * sizeof(float));
  data->check_sums(stream, sums.data(), sums.size(), 100, 1, 4, 9);
  EXPECT_EQ(data->take_wrong(stream, deadline()), 40U);
}

/// Copies its input, but for some bytes that it leaves as they were.
class Copying final : public Contender {
 public:
  Copying(std::string name, BenchData& data, std::size_t skipped)
      : Contender(std::move(name), {bytes, bytes, bytes}, 1), data_(data), skipped_(skipped) {}
  void renew(const Stream& stream, std::uint64_t salt) override {
    salts.push_back(salt);
    data_.fill(stream, from_.data(), bytes, 0, salt);
    data_.poison(stream, to_.data(), bytes);
  }
  void enqueue(const Stream& stream) override {
    ++calls;
    stream.copy(to_.data(), from_.data(), bytes - skipped_);
  }
  void check(const Stream& stream) override { data_.check(stream, to_.data(), bytes, 0, salts.back()); }
  void begin_parts(const Stream&, int) override {}
  void before_part(const Stream&, int) override {}
  void after_part(const Stream&, int) override {}
  void end_parts(const Stream&) override {}

  static constexpr std::size_t bytes = 4096;
  int calls = 0;
  std::vector<std::uint64_t> salts;

 private:
  BenchData& data_;
  const std::size_t skipped_;
  std::vector<std::uint8_t> from_ = std::vector<std::uint8_t>(bytes), to_ = std::vector<std::uint8_t>(bytes);
};

class BenchRun : public ::testing::Test {
 protected:
  std::vector<BenchRow> run(std::size_t skipped) {
    contenders_.clear();
    contenders_.push_back(std::make_unique<Copying>("tandem", *data_, skipped));
    contenders_.push_back(std::make_unique<Copying>("other", *data_, 0));
    return measure_contenders(job_, contenders_, *timer_, *data_, ranks_);
  }
  const Copying& contender(std::size_t i) const { return dynamic_cast<const Copying&>(*contenders_[i]); }

  BenchJob job_;
  Communicator comm_ = Communicator::create({});
  BenchRanks ranks_{nullptr, 0, 1, std::chrono::seconds(10)};
  std::unique_ptr<BenchData> data_ = make_data(comm_.device());
  std::unique_ptr<BenchTimer> timer_ = make_timer(comm_, ranks_, std::chrono::seconds(10));
  std::vector<std::unique_ptr<Contender>> contenders_;
};

TEST_F(BenchRun, CountsWhatIsWrongWhereItIsWrong) {
  job_.iterations = 3;
  job_.warmup = 2;
  const std::vector<BenchRow> rows = run(10);
  ASSERT_EQ(rows.size(), 2U);
  // Poison is as likely as any other byte: one of 256 is right by chance.
  EXPECT_GE(rows[0].wrong, 5U);
  EXPECT_LE(rows[0].wrong, 10U);
  EXPECT_EQ(rows[1].wrong, 0U);
  BenchReport report(job_, {{"tandem", "bench", "gather"}, "a device", "", {"clock", ""}});
  EXPECT_THAT(report.begin(), HasSubstr("# tandem bench gather: 2 ranks, on a device"));
  EXPECT_THAT(report.add(rows), HasSubstr("other"));
  EXPECT_EQ(report.wrong(), rows[0].wrong);
  EXPECT_THAT(report.end(), HasSubstr("FAILED"));
  EXPECT_EQ(report.as_json()["ok"], false);
}

TEST_F(BenchRun, TakesTurnsAndCountsOnlyTimedIterations) {
  job_.iterations = 4;
  job_.warmup = 2;
  const std::vector<BenchRow> rows = run(0);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[i].us.count, 4U);
    EXPECT_TRUE(rows[i].checked);
    EXPECT_EQ(rows[i].wrong, 0U);
    EXPECT_EQ(contender(i).calls, 2 + 2 + 4 + 1);  // untimed, warm-ups, timed, checked
    EXPECT_EQ(contender(i).salts.size(), 3U);      // new data for each untimed one, and for the check
  }
  EXPECT_NE(contender(0).salts.back(), contender(1).salts.back());
  job_.check = false;
  EXPECT_FALSE(run(10)[0].checked);
}

TEST(BenchReport, SaysEverythingInJson) {
  BenchJob job;
  job.operation = BenchOperation::reduce;
  BenchRow mine, other;
  mine.contender = "tandem";
  mine.volume = {200, 100, 100};
  mine.us = {20, 10, 12, 0.1};
  mine.back_to_back_us = 9;
  mine.checked = true;
  other = mine;
  other.contender = "nccl";
  other.us.median = 15;
  other.beside = BesideFigures{3, 1, 2, 1000, 1040, 1100, 7};
  BenchReport report(job, {{"tandem", "bench", "reduce"}, "a device", "tcp: why", {"clock", "2.28.9"}});
  report.add({mine, other});
  const nlohmann::ordered_json out = report.as_json();
  EXPECT_EQ(out["command"], "tandem bench reduce");
  EXPECT_TRUE(out["commit"].is_string());
  EXPECT_TRUE(out["dirty"].is_boolean());
  EXPECT_EQ(out["device"], "a device");
  EXPECT_EQ(out["route"], "tcp: why");
  EXPECT_EQ(out["nccl"], "2.28.9");
  EXPECT_EQ(out["ok"], true);
  ASSERT_EQ(out["results"].size(), 2U);
  EXPECT_EQ(out["results"][0]["contender"], "tandem");
  EXPECT_EQ(out["results"][0]["iterations"], 20);
  EXPECT_EQ(out["results"][0]["p95_us"], 12.0);
  EXPECT_EQ(out["results"][0]["back_to_back_us"], 9.0);
  EXPECT_EQ(out["results"][0]["ratio"], 1.0);
  EXPECT_EQ(out["results"][1]["ratio"], 1.5);
  EXPECT_EQ(out["results"][1]["beside"]["slow_down_percent"], 4.0);
  EXPECT_EQ(out["results"][1]["beside"]["stalls_us"], 7.0);
  EXPECT_FALSE(out["results"][0].contains("beside"));
}

}  // namespace
}  // namespace tandem::cli
