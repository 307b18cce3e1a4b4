// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "device/bf16.hpp"
#include "device/rows.hpp"
#include "host_device_support.hpp"

namespace tandem {
namespace {

using namespace testing_host;
using detail::RowAddend;
using detail::RowMove;
using detail::RowRun;
using detail::RowSum;

TEST(HostRows, MoveFollowsTheRunsOnBothSides) {
  const Device device = Device::host();
  const Stream s = device.create_stream();
  const std::array<RowRun, 2> runs{RowRun{3, 0, 0, 2}, RowRun{0, 4, 2, 1}};
  const std::vector<int> from{10, 11, -1, 20, 21, -1, 30, 31, -1, 40, 41, -1, 50, 51, -1};  // two of three columns
  std::vector<int> to(10, 7);
  const std::vector<char> letters{'a', 'b', 'c', 'd', 'e'};
  std::vector<char> spelled(5, '.');
  const std::array<RowMove, 2> moves{RowMove{from.data(), 12, to.data(), 8, 8},
                                     RowMove{letters.data(), 1, spelled.data(), 1, 1}};
  detail::move_rows(s, {runs.data(), 2, 3}, moves, {});
  s.synchronize(soon());
  EXPECT_EQ(to, (std::vector<int>{40, 41, 50, 51, 7, 7, 7, 7, 10, 11}));
  EXPECT_EQ(spelled, (std::vector<char>{'d', 'e', '.', '.', 'a'}));
}

TEST(HostRows, SumIsInOrderAndOwnRowsComeLast) {
  const Device device = Device::host();
  const Stream s = device.create_stream();
  // Rows 2 to 4 of the result. Large and small numbers: another order has another sum.
  const std::array<RowRun, 4> runs{RowRun{0, 2, 0, 2}, RowRun{0, 3, 0, 1}, RowRun{1, 2, 0, 1}, RowRun{2, 3, 1, 1}};
  const std::array<RowAddend, 2> addends{RowAddend{0, 1, 0}, RowAddend{1, 1, 8}};
  const std::array<float, 3> staging{1.0F, 1e8F, -1e8F};
  const std::array<float, 3> own{9.0F, 0.25F, 3.0F};
  std::array<float, 6> result{};
  result.fill(std::numeric_limits<float>::quiet_NaN());
  RowSum sum;
  sum.runs = runs.data();
  sum.addends = addends.data();
  sum.addend_count = 2;
  sum.staging = staging.data();
  sum.own_runs = {runs.data() + 2, 2, 2};
  sum.own = own.data();
  sum.own_stride = 4;
  sum.result = result.data();
  sum.result_stride = 4;
  sum.first_row = 2;
  sum.rows = 3;
  sum.elements = 1;
  detail::sum_rows(s, sum, {});
  s.synchronize(soon());
  EXPECT_EQ(result[2], 1.25F);
  EXPECT_EQ(result[3], 3.0F);
  EXPECT_EQ(result[4], 0.0F) << "nobody adds to it";
  EXPECT_NE(result[5], result[5]) << "not of this chunk";

  std::array<std::uint16_t, 4> narrow{};
  detail::round_rows(s, {runs.data() + 2, 2, 2}, {own.data(), 4, narrow.data(), 1}, {});
  s.synchronize(soon());
  EXPECT_EQ(narrow[2], detail::bf16_from_float(0.25F));
  EXPECT_EQ(narrow[3], detail::bf16_from_float(3.0F));
}

TEST(HostRows, WhatIsKeptLivesUntilTheWorkRan) {
  const Device device = Device::host();
  const Stream s = device.create_stream();
  const auto go = device.impl().create_signal();
  s.impl().wait(go, {});
  auto data = std::make_shared<std::array<int, 2>>(std::array<int, 2>{5, 0});
  const std::weak_ptr<void> watch = data;
  auto run = std::make_shared<RowRun>(RowRun{0, 1, 0, 1});
  const RowMove move{data->data(), 4, data->data(), 4, 4};
  detail::move_rows(s, {run.get(), 1, 1}, {&move, 1},
                    std::make_shared<std::pair<decltype(data), decltype(run)>>(data, run));
  data.reset();
  run.reset();
  EXPECT_FALSE(watch.expired());
  go->set();
  s.synchronize(soon());
  EXPECT_TRUE(watch.expired());
}

TEST(HostRows, AMarkIsReachedWhenTheStreamGetsThere) {
  const Device device = Device::host();
  const Stream s = device.create_stream();
  const auto go = device.impl().create_signal();
  const auto before = s.impl().leave_mark();
  s.impl().wait(go, {});
  const auto after = s.impl().leave_mark();
  while (!before->reached()) std::this_thread::yield();
  EXPECT_FALSE(after->reached());
  EXPECT_EQ(s.impl().capture(), 0U);
  go->set();
  s.synchronize(soon());
  EXPECT_TRUE(after->reached());
}

}  // namespace
}  // namespace tandem
