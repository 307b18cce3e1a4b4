// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/micro.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "kernel_case.hpp"

namespace tandem::testing {
namespace {

using detail::cpu::Micro;

class MicroTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && detail::cpu::micro_avx2() == nullptr) GTEST_SKIP() << "no AVX2 here";
    micro_ = GetParam() ? detail::cpu::micro_avx2() : &detail::cpu::micro_baseline();
  }
  const Micro* micro_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(, MicroTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "avx2" : "baseline"); });

std::vector<const float*> row_addresses(const std::vector<float>& rows, std::int64_t width) {
  std::vector<const float*> addresses;
  for (std::size_t i = 0; i < rows.size(); i += static_cast<std::size_t>(width)) addresses.push_back(&rows[i]);
  return addresses;
}

TEST_P(MicroTest, DotsHaveTheSameBitsInEveryTile) {
  auto rng = test_rng(90);
  const auto a = normal(rng, 11 * 576, DType::f32);
  const auto b = normal(rng, 8 * 576, DType::f32);
  const auto a_rows = row_addresses(a, 576);
  const auto b_rows = row_addresses(b, 576);
  std::vector<float> whole(11 * 8);
  micro_->dots(a_rows.data(), 11, b_rows.data(), 8, 576, whole.data(), 8);
  for (std::int64_t i = 0; i < 11; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      double want = 0;
      double size = 0;
      for (std::int64_t x = 0; x < 576; ++x) {
        const double term = static_cast<double>(a[static_cast<std::size_t>(i * 576 + x)]) *
                            static_cast<double>(b[static_cast<std::size_t>(j * 576 + x)]);
        want += term;
        size += std::fabs(term);
      }
      EXPECT_NEAR(static_cast<double>(whole[static_cast<std::size_t>(i * 8 + j)]), want, 1e-6 * size);
    }
  }
  for (std::int64_t i = 0; i < 11; ++i) {
    for (std::int64_t rows = 1; i + rows <= 11; ++rows) {
      for (std::int64_t j = 0; j < 8; ++j) {
        std::vector<float> part(static_cast<std::size_t>(rows * (8 - j)));
        micro_->dots(a_rows.data() + i, rows, b_rows.data() + j, 8 - j, 576, part.data(), 8 - j);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t k = j; k < 8; ++k) {
            ASSERT_EQ(part[static_cast<std::size_t>(r * (8 - j) + k - j)],
                      whole[static_cast<std::size_t>((i + r) * 8 + k)]);
          }
        }
      }
    }
  }
}

TEST_P(MicroTest, AddProductHasTheSameBitsForAnyNumberOfRows) {
  auto rng = test_rng(91);
  const auto rows = normal(rng, 20 * 128, DType::f32);
  const auto coefficients = normal(rng, 9 * 20, DType::f32);
  const auto start = normal(rng, 9 * 128, DType::f32);
  const auto addresses = row_addresses(rows, 128);
  std::vector<float> whole = start;
  std::vector<float*> to;
  for (std::size_t m = 0; m < 9; ++m) to.push_back(&whole[m * 128]);
  micro_->add_product(to.data(), 9, coefficients.data(), 20, addresses.data(), 20, 128);
  for (std::size_t m = 0; m < 9; ++m) {
    std::vector<float> one(start.begin() + static_cast<std::ptrdiff_t>(m * 128),
                           start.begin() + static_cast<std::ptrdiff_t>(m * 128 + 128));
    float* place = one.data();
    micro_->add_product(&place, 1, &coefficients[m * 20], 20, addresses.data(), 20, 128);
    for (std::size_t x = 0; x < 128; ++x) {
      ASSERT_EQ(one[x], whole[m * 128 + x]);
      double want = static_cast<double>(start[m * 128 + x]);
      for (std::size_t k = 0; k < 20; ++k) {
        want += static_cast<double>(coefficients[m * 20 + k]) * static_cast<double>(rows[k * 128 + x]);
      }
      ASSERT_NEAR(static_cast<double>(one[x]), want, 1e-4);
    }
  }
}

TEST_P(MicroTest, PanelDotsHaveTheSameBitsForAnyNumberOfRowsAndPanels) {
  auto rng = test_rng(92);
  const auto q = normal(rng, 15 * 128, DType::f32);
  const auto panels = normal(rng, 3 * 128 * 16, DType::f32);
  std::vector<float> whole(15 * 48);
  micro_->panel_dots(q.data(), 15, panels.data(), 3, whole.data());
  for (std::size_t i = 0; i < 15; ++i) {
    for (std::size_t p = 0; p < 3; ++p) {
      std::vector<float> part(16);
      micro_->panel_dots(&q[i * 128], 1, &panels[p * 2048], 1, part.data());
      for (std::size_t j = 0; j < 16; ++j) {
        ASSERT_EQ(part[j], whole[i * 48 + p * 16 + j]);
        double want = 0;
        for (std::size_t c = 0; c < 128; ++c) {
          want += static_cast<double>(q[i * 128 + c]) * static_cast<double>(panels[p * 2048 + c * 16 + j]);
        }
        ASSERT_NEAR(static_cast<double>(part[j]), want, 1e-4);
      }
    }
  }
}

TEST_P(MicroTest, CombineHeadsKeepsNanAndSigns) {
  const std::vector<float> w = {2, -1};
  std::vector<float> z(2 * 16, 1.0F);
  z[0] = -5;
  z[1] = NAN;
  z[16 + 2] = NAN;
  z[16 + 3] = -7;
  std::vector<float> scores(16);
  micro_->combine_heads(z.data(), 16, w.data(), 2, true, 16, scores.data());
  EXPECT_EQ(scores[0], -1);
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_TRUE(std::isnan(scores[2]));
  EXPECT_EQ(scores[3], 2);
  EXPECT_EQ(scores[4], 1);
  micro_->combine_heads(z.data(), 16, w.data(), 2, false, 16, scores.data());
  EXPECT_EQ(scores[0], -11);
  EXPECT_EQ(scores[3], 9);
}

TEST_P(MicroTest, WidenIsExactForAllValues) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(bits.size());
  micro_->widen(bits.data(), 65536, values.data());
  const std::vector<float> want = reference::decode_bf16(bits);
  EXPECT_EQ(std::memcmp(values.data(), want.data(), values.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tandem::testing
