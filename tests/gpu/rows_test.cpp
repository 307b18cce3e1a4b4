// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/rows.hpp"

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
using detail::cuda::RowRun;
using detail::cuda::RowRuns;
using Bytes = std::vector<unsigned char>;

class GpuRows : public GpuTest {
 protected:
  Buffer upload(const void* data, std::size_t bytes) const {
    const Buffer b = device().allocate(bytes);
    if (bytes > 0 && cudaMemcpy(b.data(), data, bytes, cudaMemcpyDefault) != cudaSuccess) {
      throw std::runtime_error("upload failed");
    }
    // A copy from pageable memory may still be on its way when cudaMemcpy returns, and other streams do not wait for it.
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

// Runs in any order on the strided side, with gaps; `total` is how many strided rows there have to be.
std::vector<RowRun> random_runs(std::mt19937_64& rng, std::int64_t& rows, std::int64_t& total) {
  std::vector<RowRun> runs(pick(rng, 0, 20));
  total = static_cast<std::int64_t>(pick(rng, 0, 3));
  for (RowRun& run : runs) {
    run.rows = static_cast<std::int64_t>(pick(rng, 1, rng() % 4 == 0 ? 500 : 6));
    run.row = total;
    total += run.rows + static_cast<std::int64_t>(pick(rng, 0, 3));
  }
  std::shuffle(runs.begin(), runs.end(), rng);
  rows = 0;
  for (RowRun& run : runs) {
    run.packed_row = rows;
    rows += run.rows;
  }
  return runs;
}

template <class Body>
void for_each_row(const std::vector<RowRun>& runs, const Body& body) {
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.rows; ++i) {
      body(static_cast<std::size_t>(run.row + i), static_cast<std::size_t>(run.packed_row + i));
    }
  }
}

TEST_F(GpuRows, PackedAndPlacedAsByALoop) {
  auto rng = testing::test_rng(1);
  const Stream s = stream();
  for (int round = 0; round < 150; ++round) {
    const std::size_t unit = std::size_t{1} << pick(rng, 0, 5);
    const std::size_t row_bytes = unit * pick(rng, 1, rng() % 8 == 0 ? 3000 : 80) + (rng() % 4 == 0 ? 1 : 0);
    const std::size_t stride = row_bytes + unit * pick(rng, 0, 3) + (rng() % 4 == 0 ? 1 : 0);
    const std::size_t strided_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 16);
    const std::size_t packed_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 16);
    std::int64_t rows = 0;
    std::int64_t total = 0;
    const std::vector<RowRun> runs = random_runs(rng, rows, total);
    SCOPED_TRACE("round " + std::to_string(round) + ": " + std::to_string(rows) + " rows of " +
                 std::to_string(row_bytes) + " bytes, stride " + std::to_string(stride));
    const Buffer runs_on_gpu = upload(runs.data(), runs.size() * sizeof(RowRun));
    const RowRuns all{static_cast<const RowRun*>(runs_on_gpu.data()), static_cast<std::int64_t>(runs.size()), rows};

    const Bytes source = random_bytes(rng, strided_shift + static_cast<std::size_t>(total) * stride + 32);
    const Buffer source_on_gpu = upload(source.data(), source.size());
    const Buffer packed_on_gpu = device().allocate(packed_shift + static_cast<std::size_t>(rows) * row_bytes + 32);
    const Buffer placed_on_gpu = device().allocate(source.size());
    Bytes packed(packed_on_gpu.bytes(), 0xFF);
    Bytes placed(placed_on_gpu.bytes(), 0xFF);
    for_each_row(runs, [&](std::size_t row, std::size_t packed_row) {
      const unsigned char* from = source.data() + strided_shift + row * stride;
      std::memcpy(packed.data() + packed_shift + packed_row * row_bytes, from, row_bytes);
      std::memcpy(placed.data() + strided_shift + row * stride, from, row_bytes);
    });

    auto* const packed_rows = static_cast<unsigned char*>(packed_on_gpu.data()) + packed_shift;
    detail::cuda::pack_rows(s, all, static_cast<unsigned char*>(source_on_gpu.data()) + strided_shift, stride,
                            packed_rows, row_bytes);
    detail::cuda::place_rows(s, all, packed_rows, static_cast<unsigned char*>(placed_on_gpu.data()) + strided_shift,
                             stride, row_bytes);
    s.synchronize(soon());
    ASSERT_EQ(download(packed_on_gpu), packed);
    ASSERT_EQ(download(placed_on_gpu), placed);
  }
}

TEST_F(GpuRows, AddedAsByALoop) {
  auto rng = testing::test_rng(2);
  std::normal_distribution<float> normal;
  const Stream s = stream();
  for (int round = 0; round < 100; ++round) {
    const bool bf16 = round % 2 == 0;
    const std::size_t element = bf16 ? 2 : 4;
    const std::size_t n = rng() % 2 == 0 ? 4 * pick(rng, 1, 200) : pick(rng, 1, 700);
    const std::size_t stride = n + (rng() % 2 == 0 ? 0 : pick(rng, 0, 9));  // in floats
    const std::size_t sum_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 5);
    const std::size_t packed_shift = rng() % 2 == 0 ? 0 : pick(rng, 0, 5);
    std::int64_t rows = 0;
    std::int64_t total = 0;
    const std::vector<RowRun> runs = random_runs(rng, rows, total);
    SCOPED_TRACE("round " + std::to_string(round) + ": " + std::to_string(rows) + " rows of " + std::to_string(n) +
                 " elements, stride " + std::to_string(stride));
    const Buffer runs_on_gpu = upload(runs.data(), runs.size() * sizeof(RowRun));
    const RowRuns all{static_cast<const RowRun*>(runs_on_gpu.data()), static_cast<std::int64_t>(runs.size()), rows};

    std::vector<float> sums(sum_shift + static_cast<std::size_t>(total) * stride + 8);
    for (float& x : sums) x = normal(rng);
    Bytes packed((packed_shift + static_cast<std::size_t>(rows) * n + 8) * element, 0xFF);
    const Buffer sums_on_gpu = upload(sums.data(), sums.size() * sizeof(float));
    for_each_row(runs, [&](std::size_t row, std::size_t packed_row) {
      for (std::size_t i = 0; i < n; ++i) {
        const float value = bf16 ? detail::bf16_round(normal(rng)) : normal(rng);
        unsigned char* const at = packed.data() + (packed_shift + packed_row * n + i) * element;
        if (bf16) {
          const std::uint16_t bits = detail::bf16_from_float(value);
          std::memcpy(at, &bits, sizeof(bits));
        } else {
          std::memcpy(at, &value, sizeof(value));
        }
        // Twice, as the kernel is called twice.
        sums[sum_shift + row * stride + i] += value;
        sums[sum_shift + row * stride + i] += value;
      }
    });
    const Buffer packed_on_gpu = upload(packed.data(), packed.size());
    for (int i = 0; i < 2; ++i) {
      detail::cuda::add_rows(s, all, static_cast<unsigned char*>(packed_on_gpu.data()) + packed_shift * element,
                             bf16 ? DType::bf16 : DType::f32, static_cast<float*>(sums_on_gpu.data()) + sum_shift,
                             stride * sizeof(float), static_cast<std::int64_t>(n));
    }
    s.synchronize(soon());
    const Bytes found = download(sums_on_gpu);
    ASSERT_EQ(std::memcmp(found.data(), sums.data(), found.size()), 0);  // the same bits
  }
}

TEST_F(GpuRows, WrongUseIsRefused) {
  const Stream s = stream();
  const Buffer b = device().allocate(1024);
  const RowRun run{0, 0, 1};
  const Buffer runs_on_gpu = upload(&run, sizeof(run));
  const RowRuns runs{static_cast<const RowRun*>(runs_on_gpu.data()), 1, 1};
  auto* const sums = static_cast<float*>(b.data());
  using detail::cuda::add_rows;
  EXPECT_ERROR(add_rows(s, runs, sums, DType::f64, sums, 16, 4), ErrorCode::invalid_argument, "rows of f64");
  EXPECT_ERROR(add_rows(s, runs, sums, DType::f32, sums, 17, 4), ErrorCode::invalid_argument, "not a multiple");
  EXPECT_ERROR(add_rows(s, runs, static_cast<char*>(b.data()) + 1, DType::bf16, sums, 16, 4),
               ErrorCode::invalid_argument, "not a multiple");
  EXPECT_ERROR(detail::cuda::pack_rows(Device::host().create_stream(), runs, sums, 4, sums, 4),
               ErrorCode::invalid_argument, "is the host's");
  // No rows, or rows without bytes: nothing is touched, not even the runs.
  detail::cuda::pack_rows(s, {}, nullptr, 4, nullptr, 4);
  detail::cuda::place_rows(s, {nullptr, 1, 1}, nullptr, nullptr, 0, 0);
  add_rows(s, {}, nullptr, DType::bf16, nullptr, 4, 4);
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
  run[0] = {0, 0, 1};
  const Pinned<float> sums(elements);
  std::fill_n(sums.data(), elements, 1.0F);
  detail::cuda::add_rows(s, {run.data(), 1, 1}, sums.data(), DType::f32, sums.data(), 4 * elements, elements);
  gate.open();
  s.synchronize(soon());
  stuck.synchronize(soon());
  EXPECT_EQ(sums[63], 2.0F);
}

}  // namespace
}  // namespace tandem
