// SPDX-License-Identifier: Apache-2.0
#include "tandem/tensor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

namespace tandem {
namespace {

using ::testing::HasSubstr;

void expect_rejected(const std::function<void()>& body, const std::string& text) {
  try {
    body();
    ADD_FAILURE() << "accepted; expected '" << text << "'";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(e.what(), HasSubstr(text));
  }
}

alignas(8) char memory[4096];

TEST(DType, SizesAndNames) {
  const std::tuple<DType, std::size_t, const char*> all[] = {
      {DType::f32, 4, "f32"}, {DType::f64, 8, "f64"}, {DType::bf16, 2, "bf16"}, {DType::f8e4m3, 1, "f8e4m3"},
      {DType::i32, 4, "i32"}, {DType::i64, 8, "i64"}, {DType::u8, 1, "u8"}};
  for (const auto& [dtype, bytes, name] : all) {
    EXPECT_EQ(size_of(dtype), bytes) << name;
    EXPECT_STREQ(to_string(dtype), name);
  }
}

TEST(Tensor, DenseViewOfRawMemory) {
  const Tensor t = Tensor::from_raw(memory, DType::bf16, {3, 4, 5});
  EXPECT_TRUE(t.valid());
  EXPECT_EQ(t.data(), memory);
  EXPECT_EQ(t.dtype(), DType::bf16);
  EXPECT_EQ(t.dims(), 3);
  EXPECT_EQ(t.size(1), 4);
  EXPECT_EQ(t.stride(0), 20);
  EXPECT_EQ(t.stride(1), 5);
  EXPECT_EQ(t.stride(2), 1);
  EXPECT_EQ(t.elements(), 60);
  EXPECT_EQ(t.row_elements(), 20);
  EXPECT_EQ(t.row_bytes(), 40U);
  EXPECT_EQ(t.row_stride_bytes(), 40U);
  EXPECT_TRUE(t.rows_dense());
  EXPECT_EQ(t.describe(), "bf16 [3, 4, 5]");
}

TEST(Tensor, StridedRows) {
  const Tensor apart = Tensor::from_raw(memory, DType::f32, {3, 2, 4}, {100, 4, 1});
  EXPECT_TRUE(apart.rows_dense());
  EXPECT_EQ(apart.row_bytes(), 32U);
  EXPECT_EQ(apart.row_stride_bytes(), 400U);
  EXPECT_FALSE(Tensor::from_raw(memory, DType::f32, {3, 2, 4}, {100, 5, 1}).rows_dense());
  EXPECT_TRUE(Tensor::from_raw(memory, DType::f32, {3, 1, 4}, {100, 77, 1}).rows_dense());
  EXPECT_TRUE(Tensor::from_raw(memory, DType::f32, {3, 4}, {0, 1}).rows_dense());
}

TEST(Tensor, OneDimensionAndNone) {
  const Tensor t = Tensor::from_raw(memory, DType::i64, {7});
  EXPECT_EQ(t.row_elements(), 1);
  EXPECT_EQ(t.row_bytes(), 8U);
  EXPECT_TRUE(t.rows_dense());
  const Tensor none;
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.elements(), 0);
  EXPECT_EQ(none.row_elements(), 0);
  EXPECT_EQ(none.describe(), "no tensor");
}

TEST(Tensor, EmptyOnesKeepTheirRowSize) {
  const Tensor t = Tensor::from_raw(nullptr, DType::f32, {0, 4, 576});
  EXPECT_EQ(t.elements(), 0);
  EXPECT_EQ(t.row_bytes(), 4U * 576 * 4);
  EXPECT_TRUE(t.rows_dense());
  EXPECT_EQ(t.rows(0, 0).elements(), 0);
}

TEST(Tensor, WrongShapesAreRejected) {
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {2, -1}); }, "f32 [2, -1]: extent -1 is negative");
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {1, 1, 1, 1, 1}); }, "more than 4 dimensions");
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {}); }, "at least one dimension");
  expect_rejected([] { Tensor::from_raw(memory, DType::u8, {1LL << 32, 1LL << 31}); }, "overflows");
  expect_rejected([] { Tensor::from_raw(memory, DType::f64, {1LL << 61}); }, "overflows");
  // Of an empty tensor the row must still have a size.
  expect_rejected([] { Tensor::from_raw(memory, DType::u8, {0, 1LL << 32, 1LL << 31}); }, "overflows");
  expect_rejected([] { Tensor::from_raw(nullptr, DType::f32, {1}); }, "address is null");
  expect_rejected([] { Tensor::from_raw(memory + 2, DType::f32, {1}); }, "not a multiple");
}

TEST(Tensor, WrongStridesAreRejected) {
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {2, 3}, {6, 2}); }, "last stride is 2");
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {2, 3}, {1}); }, "1 strides for 2 dimensions");
  expect_rejected([] { Tensor::from_raw(memory, DType::f32, {2, 3}, {-3, 1}); }, "stride -3 is negative");
  expect_rejected([] { Tensor::from_raw(memory, DType::u8, {4, 1}, {1LL << 61, 1}); }, "strides overflow");
  expect_rejected([] { Tensor::from_raw(memory, DType::f64, {2, 1}, {1LL << 60, 1}); }, "strides overflow");
}

TEST(Tensor, RowsAreViews) {
  const Tensor t = Tensor::from_raw(memory, DType::f32, {5, 2, 3}, {10, 3, 1});
  const Tensor part = t.rows(2, 3);
  EXPECT_EQ(part.data(), memory + 80);
  EXPECT_EQ(part.size(0), 3);
  EXPECT_EQ(part.stride(0), 10);
  EXPECT_EQ(t.rows(5, 0).size(0), 0);
  expect_rejected([&] { t.rows(3, 3); }, "f32 [5, 2, 3]: it has no rows [3, 3 + 3)");
  expect_rejected([&] { t.rows(-1, 1); }, "no rows");
  expect_rejected([&] { t.rows(0, -1); }, "no rows");
  expect_rejected([&] { t.rows(1, std::numeric_limits<std::int64_t>::max()); }, "no rows");
  EXPECT_THROW(Tensor().rows(0, 0), Error);
}

TEST(Tensor, AllocatedMemoryLivesAsLongAsAView) {
  Tensor last_row;
  {
    const Device device = Device::host();
    const Tensor t = Tensor::allocate(device, DType::f64, {100, 8});
    for (int i = 0; i < 800; ++i) t.data_as<double>()[i] = i;
    last_row = t.rows(99, 1);
  }
  EXPECT_EQ(last_row.data_as<double>()[7], 799.0);  // a sanitizer sees it if the memory is gone
}

TEST(Tensor, ViewsOfABuffer) {
  const Device device = Device::host();
  const Buffer buffer = device.allocate(64);
  const Tensor t = Tensor::view(buffer, 16, DType::f32, {3, 4});
  EXPECT_EQ(t.data(), static_cast<char*>(buffer.data()) + 16);
  EXPECT_EQ(Tensor::view(buffer, 64, DType::f32, {0, 4}).elements(), 0);
  expect_rejected([&] { Tensor::view(buffer, 20, DType::f32, {3, 4}); }, "48 bytes from byte 20");
  expect_rejected([&] { Tensor::view(buffer, 65, DType::f32, {0}); }, "do not fit");
  expect_rejected([&] { Tensor::view(buffer, 2, DType::f32, {1}); }, "not a multiple");
}

TEST(Tensor, HugeAllocationIsOutOfMemory) {
  try {
    Tensor::allocate(Device::host(), DType::f64, {1LL << 55});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
  }
}

}  // namespace
}  // namespace tandem
