// SPDX-License-Identifier: Apache-2.0
#include "device/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/bf16.hpp"
#include "gpu_support.hpp"
#include "support/random.hpp"

namespace tandem {
namespace {

using namespace testing_gpu;
using detail::RowAddend;
using detail::RowMove;
using detail::RowRun;
using detail::RowRuns;
using detail::RowSum;
using Bytes = std::vector<unsigned char>;

class GpuRows : public GpuTest {
 protected:
  Buffer upload(const void* data, std::size_t bytes) const {
    const Buffer b = device().allocate(bytes);
    if (bytes > 0 && cudaMemcpy(b.data(), data, bytes, cudaMemcpyDefault) != cudaSuccess) {
      throw std::runtime_error("upload failed");
    }
    // A copy from pageable memory may still be on its way when cudaMemcpy returns, and other streams do not wait for
    // it.
    if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("upload failed");
    return b;
  }
  Bytes download(const Buffer& b) const {
    Bytes bytes(b.bytes());
    EXPECT_EQ(cudaMemcpy(bytes.data(), b.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
    return bytes;
  }
};

std::size_t pick(std::mt19937_64& rng, std::size_t low, std::size_t high) {
  return std::uniform_int_distribution<std::size_t>(low, high)(rng);
}

Bytes random_bytes(std::mt19937_64& rng, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t eight = rng();
    std::memcpy(bytes.data() + i, &eight, std::min<std::size_t>(8, count - i));
  }
  return bytes;
}

// Runs in any order on the reading side, with gaps on both; `from_total` and `to_total` are how many rows there have to
// be.
std::vector<RowRun> random_runs(std::mt19937_64& rng, std::int64_t& rows, std::int64_t& from_total,
                                std::int64_t& to_total) {
  std::vector<RowRun> runs(pick(rng, 0, 20));
  from_total = static_cast<std::int64_t>(pick(rng, 0, 3));
  for (RowRun& run : runs) {
    run.rows = static_cast<std::int64_t>(pick(rng, 1, rng() % 4 == 0 ? 500 : 6));
    run.from = from_total;
    from_total += run.rows + static_cast<std::int64_t>(pick(rng, 0, 3));
  }
  std::shuffle(runs.begin(), runs.end(), rng);
  rows = 0;
  to_total = 0;
  for (RowRun& run : runs) {
    run.begin = rows;
    rows += run.rows;
    to_total += static_cast<std::int64_t>(pick(rng, 0, 2));
    run.to = to_total;
    to_total += run.rows;
  }
  return runs;
}

template <class Body>
void for_each_row(const std::vector<RowRun>& runs, const Body& body) {
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.rows; ++i) {
      body(static_cast<std::size_t>(run.from + i), static_cast<std::size_t>(run.to + i));
    }
  }
}

// One to ten tensors in one call.
TEST_F(GpuRows, MovedAsByALoop) {
  auto rng = testing::test_rng(1);
  const Stream s = stream();
  for (int round = 0; round < 150; ++round) {
    std::int64_t rows = 0;
    std::int64_t from_total = 0;
    std::int64_t to_total = 0;
    const std::vector<RowRun> runs = random_runs(rng, rows, from_total, to_total);
    const Buffer runs_on_gpu = upload(runs.data(), runs.size() * sizeof(RowRun));
    const RowRuns all{static_cast<const RowRun*>(runs_on_gpu.data()), static_cast<std::int64_t>(runs.size()), rows};
    std::vector<RowMove> moves;
    std::vector<Buffer> memory;
    std::vector<Bytes> expected;
    for (std::size_t count = pick(rng, 1, rng() % 4 == 0 ? 10 : 2); count > 0; --count) {
      const std::size_t unit = std::size_t{1} << pick(rng, 0, 5);
      const std::size_t row_bytes = unit * pick(rng, 1, rng() % 8 == 0 ? 3000 : 80) + (rng() % 4 == 0 ? 1 : 0);
      const std::size_t from_stride = row_bytes + unit * pick(rng, 0, 3) + (rng() % 4 == 0 ? 1 : 0);
      const std::size_t to_stride = rng() % 2 == 0 ? row_bytes : row_bytes + unit * pick(rng, 0, 3);
      const std::size_t from_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 16);
      const std::size_t to_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 16);
      const Bytes source = random_bytes(rng, from_shift + static_cast<std::size_t>(from_total) * from_stride + 32);
      Bytes result(to_shift + static_cast<std::size_t>(to_total) * to_stride + 32, 0xFF);
      for_each_row(runs, [&](std::size_t from, std::size_t to) {
        std::memcpy(result.data() + to_shift + to * to_stride, source.data() + from_shift + from * from_stride,
                    row_bytes);
      });
      memory.push_back(upload(source.data(), source.size()));
      const Buffer to = device().allocate(result.size());
      moves.push_back({static_cast<unsigned char*>(memory.back().data()) + from_shift, from_stride,
                       static_cast<unsigned char*>(to.data()) + to_shift, to_stride, row_bytes});
      memory.push_back(to);
      expected.push_back(result);
    }
    SCOPED_TRACE("round " + std::to_string(round));
    detail::move_rows(s, all, moves, {});
    s.synchronize(soon());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(download(memory[2 * i + 1]), expected[i]) << i;
  }
}

float special(std::mt19937_64& rng, std::normal_distribution<float>& normal) {
  switch (rng() % 32) {
    case 0:
      return INFINITY;
    case 1:
      return -0.0F;
    case 2:
      return 3.4e38F;
    default:
      return normal(rng);
  }
}

TEST_F(GpuRows, RoundedAsOnTheHost) {
  auto rng = testing::test_rng(2);
  std::normal_distribution<float> normal;
  const Stream s = stream();
  for (int round = 0; round < 60; ++round) {
    const std::size_t n = rng() % 2 == 0 ? 4 * pick(rng, 1, 200) : pick(rng, 1, 700);
    const std::size_t stride = n + (rng() % 2 == 0 ? 0 : pick(rng, 0, 9));
    const std::size_t shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 5);
    std::int64_t rows = 0;
    std::int64_t from_total = 0;
    std::int64_t to_total = 0;
    const std::vector<RowRun> runs = random_runs(rng, rows, from_total, to_total);
    const Buffer runs_on_gpu = upload(runs.data(), runs.size() * sizeof(RowRun));
    std::vector<float> source(shift + static_cast<std::size_t>(from_total) * stride + 8);
    for (float& x : source) x = special(rng, normal);
    const Buffer source_on_gpu = upload(source.data(), source.size() * sizeof(float));
    std::vector<std::uint16_t> expected(shift + static_cast<std::size_t>(to_total) * n + 8, 0xFFFF);
    const Buffer to = device().allocate(expected.size() * 2);
    for_each_row(runs, [&](std::size_t f, std::size_t t) {
      for (std::size_t e = 0; e < n; ++e)
        expected[shift + t * n + e] = detail::bf16_from_float(source[shift + f * stride + e]);
    });
    detail::round_rows(s,
                       {static_cast<const RowRun*>(runs_on_gpu.data()), static_cast<std::int64_t>(runs.size()), rows},
                       {static_cast<const float*>(source_on_gpu.data()) + shift, stride * 4,
                        static_cast<std::uint16_t*>(to.data()) + shift, static_cast<std::int64_t>(n)},
                       {});
    s.synchronize(soon());
    const Bytes found = download(to);
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0) << "round " << round;
  }
}

// The host's own sum_rows is what the GPU's is compared with, bit for bit.
TEST_F(GpuRows, SummedAsOnTheHost) {
  auto rng = testing::test_rng(3);
  std::normal_distribution<float> normal;
  const Stream s = stream();
  const Device host = Device::host();
  const Stream h = host.create_stream();
  for (int round = 0; round < 100; ++round) {
    const bool wire_bf16 = round % 2 == 0;
    const bool result_bf16 = round % 4 < 2;
    const std::size_t n = rng() % 2 == 0 ? 4 * pick(rng, 1, 200) : pick(rng, 1, 300);
    const auto rows = static_cast<std::int64_t>(pick(rng, 1, 300));
    const auto first = static_cast<std::int64_t>(pick(rng, 0, 5));
    std::vector<RowRun> runs;
    // Runs that ascend on both sides; returns the rows on the reading side.
    auto add_runs = [&](std::int64_t gap) {
      std::int64_t from = 0;
      for (std::int64_t to = first + static_cast<std::int64_t>(pick(rng, 0, 9)); to < first + rows;) {
        const std::int64_t count =
            std::min<std::int64_t>(static_cast<std::int64_t>(pick(rng, 1, 40)), first + rows - to);
        from += static_cast<std::int64_t>(pick(rng, 0, static_cast<std::size_t>(gap)));
        runs.push_back({from, to, 0, count});
        from += count;
        to += count + static_cast<std::int64_t>(pick(rng, 0, 3));
      }
      return from;
    };
    const std::size_t wire = wire_bf16 ? 2 : 4;
    std::vector<RowAddend> addends(pick(rng, 0, 7));
    std::size_t staged = 0;
    for (RowAddend& a : addends) {
      a.first_run = static_cast<std::int64_t>(runs.size());
      a.offset = static_cast<std::int64_t>(staged);
      const std::int64_t count = add_runs(0);
      a.runs = static_cast<std::int64_t>(runs.size()) - a.first_run;
      staged = (staged + static_cast<std::size_t>(count) * n * wire + 255) / 256 * 256;
    }
    const std::size_t own_first = runs.size();
    const std::int64_t own_rows = rng() % 8 == 0 ? 0 : add_runs(3);
    const std::size_t own_stride = n + (rng() % 2 == 0 ? 0 : pick(rng, 0, 5));
    const std::size_t result_stride = n + (rng() % 2 == 0 ? 0 : pick(rng, 0, 5));
    Bytes staging(staged + 16);
    for (std::size_t i = 0; i + wire <= staged; i += wire) {
      const float value = special(rng, normal);
      const std::uint16_t bits = detail::bf16_from_float(value);
      std::memcpy(staging.data() + i, wire_bf16 ? static_cast<const void*>(&bits) : &value, wire);
    }
    std::vector<float> own(static_cast<std::size_t>(own_rows) * own_stride + 8);
    for (float& x : own) x = special(rng, normal);
    Bytes expected(static_cast<std::size_t>(first + rows) * result_stride * (result_bf16 ? 2 : 4) + 8, 0xFF);

    RowSum sum;
    auto aim = [&](const void* r, const void* a, const void* in, const void* mine, void* out) {
      sum.runs = static_cast<const RowRun*>(r);
      sum.addends = static_cast<const RowAddend*>(a);
      sum.staging = in;
      sum.own = static_cast<const float*>(mine);
      sum.own_runs = {sum.runs + own_first, own_rows == 0 ? 0 : static_cast<std::int64_t>(runs.size() - own_first), 0};
      sum.result = out;
    };
    sum.addend_count = static_cast<std::int64_t>(addends.size());
    sum.wire = wire_bf16 ? DType::bf16 : DType::f32;
    sum.own_stride = own_stride * 4;
    sum.result_type = result_bf16 ? DType::bf16 : DType::f32;
    sum.result_stride = result_stride * (result_bf16 ? 2 : 4);
    sum.first_row = first;
    sum.rows = rows;
    sum.elements = static_cast<std::int64_t>(n);
    aim(runs.data(), addends.data(), staging.data(), own.data(), expected.data());
    detail::sum_rows(h, sum, {});
    h.synchronize(soon());

    const Buffer runs_on_gpu = upload(runs.data(), runs.size() * sizeof(RowRun));
    const Buffer addends_on_gpu = upload(addends.data(), addends.size() * sizeof(RowAddend));
    const Buffer staging_on_gpu = upload(staging.data(), staging.size());
    const Buffer own_on_gpu = upload(own.data(), own.size() * sizeof(float));
    const Buffer result_on_gpu = device().allocate(expected.size());
    aim(runs_on_gpu.data(), addends_on_gpu.data(), staging_on_gpu.data(), own_on_gpu.data(), result_on_gpu.data());
    detail::sum_rows(s, sum, {});
    s.synchronize(soon());
    const Bytes found = download(result_on_gpu);
    // What a sum of infinities of both signs is, is one NaN on the host and another on a GPU.
    if (result_bf16) {
      for (std::size_t i = 0; i + 2 <= found.size(); i += 2) {
        std::uint16_t a = 0;
        std::uint16_t b = 0;
        std::memcpy(&a, found.data() + i, 2);
        std::memcpy(&b, expected.data() + i, 2);
        ASSERT_TRUE(a == b || (std::isnan(detail::bf16_to_float(a)) && std::isnan(detail::bf16_to_float(b))))
            << "round " << round << " at byte " << i;
      }
    } else {
      for (std::size_t i = 0; i + 4 <= found.size(); i += 4) {
        float a = 0;
        float b = 0;
        std::memcpy(&a, found.data() + i, 4);
        std::memcpy(&b, expected.data() + i, 4);
        ASSERT_TRUE(std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)))
            << "round " << round << " at byte " << i;
      }
    }
  }
}

TEST_F(GpuRows, WrongUseIsRefused) {
  const Stream s = stream();
  const Buffer b = device().allocate(1024);
  const RowRun run{0, 0, 0, 1};
  const Buffer runs_on_gpu = upload(&run, sizeof(run));
  const RowRuns runs{static_cast<const RowRun*>(runs_on_gpu.data()), 1, 1};
  auto* const floats = static_cast<float*>(b.data());
  auto* const odd = reinterpret_cast<float*>(static_cast<char*>(b.data()) + 1);
  RowSum sum;
  sum.result = floats;
  sum.result_stride = 16;
  sum.rows = 1;
  sum.elements = 4;
  sum.wire = DType::f64;
  EXPECT_ERROR(detail::sum_rows(s, sum, {}), ErrorCode::invalid_argument, "rows of f64");
  sum.wire = DType::f32;
  sum.result_stride = 17;
  EXPECT_ERROR(detail::sum_rows(s, sum, {}), ErrorCode::invalid_argument, "not a multiple");
  EXPECT_ERROR(detail::round_rows(s, runs, {odd, 16, reinterpret_cast<std::uint16_t*>(floats), 4}, {}),
               ErrorCode::invalid_argument, "not a multiple");
  // No rows, or rows without bytes: nothing is touched, not even the runs.
  const RowMove nothing{};
  detail::move_rows(s, {}, {&nothing, 1}, {});
  detail::move_rows(s, {nullptr, 1, 1}, {&nothing, 1}, {});
  detail::move_rows(s, runs, {}, {});
  sum.rows = 0;
  sum.result_stride = 16;
  detail::sum_rows(s, sum, {});
  s.synchronize(soon());
}

// Behind a stream that waits, loading a kernel would hang: all are loaded when the device is made.
TEST_F(GpuRows, FirstLaunchBehindAWaitDoesNotBlock) {
  const Stream stuck = stream();
  const Stream s = stream();
  const Gate gate(device());
  gate.hold(stuck);
  const std::int64_t elements = 64;
  const Pinned<RowRun> run;
  run[0] = {0, 1, 0, 1};
  const Pinned<float> rows(2 * elements);
  std::fill_n(rows.data(), elements, 2.0F);
  const RowMove move{rows.data(), 4 * elements, rows.data(), 4 * elements, 4 * elements};
  detail::move_rows(s, {run.data(), 1, 1}, {&move, 1}, {});
  gate.open();
  s.synchronize(soon());
  stuck.synchronize(soon());
  EXPECT_EQ(rows[127], 2.0F);
}

}  // namespace
}  // namespace tandem
