// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/row_fill.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tandem/encode.hpp"
#include "tandem/results.hpp"

namespace tandem::cli {
namespace {

constexpr std::size_t staged_bytes = std::size_t{64} << 20;
constexpr std::chrono::minutes patience{5};

std::size_t elements_of_row(const Tensor& t) { return t.dims() == 1 ? 1 : static_cast<std::size_t>(t.row_elements()); }

}  // namespace

int fill_threads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 64U)); }

void in_threads(std::int64_t count, const std::function<void(std::int64_t)>& work) {
  std::atomic<std::int64_t> next{0};
  const auto run = [&] {
    for (std::int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  for (std::int64_t t = 1; t < std::min<std::int64_t>(fill_threads(), count); ++t) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
}

RowFiller::RowFiller(const Device& device) : device_(device), stream_(device.create_stream({.name = "bench-fill"})) {}

void RowFiller::synchronize() const { stream_.synchronize(Deadline::after(patience)); }

void RowFiller::stage(const Tensor& to, const std::function<void(std::int64_t, std::byte*)>& row) const {
  const std::size_t bytes = elements_of_row(to) * size_of(to.dtype());
  if (to.size(0) == 0 || bytes == 0) return;
  const std::int64_t rows = to.size(0);
  const auto at_once = static_cast<std::int64_t>(std::max<std::size_t>(1, staged_bytes / bytes));
  std::vector<std::byte> staging(static_cast<std::size_t>(std::min(at_once, rows)) * bytes);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t count = std::min(at_once, rows - first);
    // In portions, so that threads do not meet at every row.
    constexpr std::int64_t portion = 16;
    in_threads((count + portion - 1) / portion, [&](std::int64_t p) {
      for (std::int64_t i = portion * p; i < std::min(count, portion * (p + 1)); ++i)
        row(first + i, staging.data() + static_cast<std::size_t>(i) * bytes);
    });
    stream_.copy(to.data_as<std::byte>() + static_cast<std::size_t>(first) * bytes, staging.data(),
                 static_cast<std::size_t>(count) * bytes);
    synchronize();
  }
}

Tensor RowFiller::make(DType dtype, std::initializer_list<std::int64_t> shape,
                       const std::function<void(std::int64_t, float*)>& row) const {
  Tensor made = Tensor::allocate(device_, dtype, shape);
  const std::size_t count = elements_of_row(made);
  stage(made, [&](std::int64_t i, std::byte* to) {
    thread_local std::vector<float> values;
    values.resize(count);
    row(i, values.data());
    encode(values.data(), count, dtype, to);
  });
  return made;
}

Tensor RowFiller::make(std::initializer_list<std::int64_t> shape,
                       const std::function<void(std::int64_t, std::int32_t*)>& row) const {
  Tensor made = Tensor::allocate(device_, DType::i32, shape);
  stage(made, [&](std::int64_t i, std::byte* to) { row(i, reinterpret_cast<std::int32_t*>(to)); });
  return made;
}

Tensor RowFiller::table(const std::vector<std::int32_t>& values, std::int64_t columns) const {
  const std::int64_t rows = std::ssize(values) / columns;
  Tensor made = columns == 1 ? Tensor::allocate(device_, DType::i32, {rows})
                             : Tensor::allocate(device_, DType::i32, {rows, columns});
  stream_.copy(made.data(), values.data(), values.size() * sizeof(std::int32_t));
  synchronize();
  return made;
}

Tensor RowFiller::fetch(const Tensor& tensor, std::int64_t begin, std::int64_t count) const {
  Tensor here = allocate_like(Device::host(), tensor, count);
  const std::size_t bytes = elements_of_row(tensor) * size_of(tensor.dtype());
  const auto offset = static_cast<std::size_t>(begin) * bytes;
  stream_.copy(here.data(), tensor.data_as<std::byte>() + offset, static_cast<std::size_t>(count) * bytes);
  synchronize();
  return here;
}

Tensor RowFiller::fetch(const Tensor& tensor, const std::vector<std::int64_t>& rows) const {
  Tensor here = allocate_like(Device::host(), tensor, std::ssize(rows));
  const std::size_t bytes = elements_of_row(tensor) * size_of(tensor.dtype());
  auto* to = here.data_as<std::byte>();
  for (std::size_t first = 0, end = 0; first < rows.size(); first = end) {
    // Neighbours go in one copy.
    while (end < rows.size() && rows[end] - rows[first] == static_cast<std::int64_t>(end - first)) ++end;
    const std::size_t run = (end - first) * bytes;
    stream_.copy(to, tensor.data_as<std::byte>() + static_cast<std::size_t>(rows[first]) * bytes, run);
    to += run;
  }
  synchronize();
  return here;
}

Tensor RowFiller::copy(const Tensor& tensor) const {
  if (!tensor.valid()) return {};
  Tensor made = allocate_like(device_, tensor, tensor.size(0));
  stream_.copy(made.data(), tensor.data(),
               elements_of_row(tensor) * size_of(tensor.dtype()) * static_cast<std::size_t>(tensor.size(0)));
  synchronize();
  return made;
}

}  // namespace tandem::cli
