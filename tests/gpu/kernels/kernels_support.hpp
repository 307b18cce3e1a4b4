// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "unit/kernels/kernel_case.hpp"

/// The kernels of a GPU beside those of the cpu, on inputs that the host made.
namespace tandem::testing_gpu {

using testing::Case;
using testing::CaseShape;
using testing::Shape;

inline Deadline soon_enough() { return Deadline::after(std::chrono::seconds(60)); }

inline Tensor allocate_like(const Device& device, const Tensor& t) {
  switch (t.dims()) {
    case 1:
      return Tensor::allocate(device, t.dtype(), {t.size(0)});
    case 2:
      return Tensor::allocate(device, t.dtype(), {t.size(0), t.size(1)});
    default:
      return Tensor::allocate(device, t.dtype(), {t.size(0), t.size(1), t.size(2)});
  }
}
inline std::size_t bytes_in(const Tensor& t) { return static_cast<std::size_t>(t.elements()) * size_of(t.dtype()); }

constexpr CudaKernelOptions kernel_sets[] = {{CudaKernels::generic, false}, {CudaKernels::sm90, false}};
/// For what adds gradients.
constexpr CudaKernelOptions deterministic_sets[] = {{CudaKernels::generic, true}, {CudaKernels::sm90, true}};

inline std::string name_of_set(const ::testing::TestParamInfo<CudaKernelOptions>& info) {
  const std::string name = info.param.which == CudaKernels::generic ? "Generic" : "Sm90";
  return name + (info.param.deterministic ? "Deterministic" : "");
}

/// Once with each set. Where sm90 has no kernels of its own it has those of generic, so that all holds for it, too.
class KernelsOnGpu : public GpuTest, public ::testing::WithParamInterface<CudaKernelOptions> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = stream();
    try {
      kernels_ = cuda_kernels(device(), GetParam());
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      GTEST_SKIP() << "SKIPPED: " << e.what();
    }
    cpu_device_ = std::make_unique<Device>(Device::host());
    cpu_stream_ = cpu_device_->create_stream();
    cpu_ = cpu_kernels({.threads = 2});
  }

  /// A dense copy on the GPU, empty for an empty tensor.
  Tensor up(const Tensor& host) const {
    if (!host.valid()) return {};
    const Tensor t = allocate_like(device(), host);
    stream_.copy(t.data(), host.data(), bytes_in(host));
    stream_.synchronize(soon_enough());
    return t;
  }
  Tensor down(const Tensor& t) const {
    if (!t.valid()) return {};
    const Tensor host = t.dims() == 1   ? testing::poisoned(t.dtype(), {t.size(0)})
                        : t.dims() == 2 ? testing::poisoned(t.dtype(), {t.size(0), t.size(1)})
                                        : testing::poisoned(t.dtype(), {t.size(0), t.size(1), t.size(2)});
    stream_.copy(host.data(), t.data(), bytes_in(t));
    stream_.synchronize(soon_enough());
    return host;
  }
  Tensor table(const std::vector<std::int32_t>& values, std::int64_t columns) const {
    const std::int64_t rows = std::ssize(values) / columns;
    return up(columns == 1 ? testing::from_values(DType::i32, {rows}, values)
                           : testing::from_values(DType::i32, {rows, columns}, values));
  }
  Tensor bounds_of(const Case& c) const {
    std::vector<std::int32_t> values;
    for (std::size_t t = 0; t < c.p.begin.size(); ++t) {
      values.push_back(static_cast<std::int32_t>(c.p.begin[t]));
      values.push_back(static_cast<std::int32_t>(c.p.end[t]));
    }
    return table(values, 2);
  }
  /// The problem's inputs on the GPU; its spans still are the case's.
  Case on_gpu(const Case& c) const {
    Case g = c;
    for (Tensor* t : {&g.q, &g.kv, &g.sink, &g.dout, &g.index_q, &g.index_w, &g.index_k, &g.index_k_scale}) *t = up(*t);
    return g;
  }
  IndexerInputs indexer(const Case& g) const {
    IndexerInputs in = g.indexer();
    in.bounds = bounds_of(g);
    return in;
  }
  /// With the tables of a step.
  IndexerInputs indexer(const Case& g, const IndexerStep& step) const {
    IndexerInputs in = indexer(g);
    std::vector<std::int32_t> rows, keys;
    for (const RowRange& r : step.rows) {
      for (std::int64_t t = r.begin; t < r.end; ++t) rows.push_back(static_cast<std::int32_t>(t));
    }
    for (const RowRange& r : step.keys) {
      keys.push_back(static_cast<std::int32_t>(r.begin));
      keys.push_back(static_cast<std::int32_t>(r.end));
    }
    in.step_rows = table(rows, 1);
    in.step_keys = table(keys, 2);
    return in;
  }
  void finish() const {
    stream_.synchronize(soon_enough());
    kernels_->throw_if_failed();
  }

  std::shared_ptr<KernelSet> kernels_, cpu_;
  std::unique_ptr<Device> cpu_device_;
  Stream stream_, cpu_stream_;
};

/// Distinct visible keys of each row, ascending, at most K of them.
inline reference::Lists random_lists(std::mt19937_64& rng, const Case& c) {
  reference::Lists lists(static_cast<std::size_t>(c.p.rows));
  for (std::size_t t = 0; t < lists.size(); ++t) {
    std::vector<std::int64_t> keys(static_cast<std::size_t>(c.p.end[t] - c.p.begin[t]));
    std::iota(keys.begin(), keys.end(), c.p.begin[t]);
    std::shuffle(keys.begin(), keys.end(), rng);
    keys.resize(std::min(keys.size(), static_cast<std::size_t>(c.p.topk)));
    std::sort(keys.begin(), keys.end());
    lists[t] = keys;
  }
  return lists;
}

/// The same sets out of order, with repetitions and holes: at most `more` entries more.
inline reference::Lists messy(std::mt19937_64& rng, reference::Lists lists, int more) {
  for (auto& list : lists) {
    for (int i = 0; i < more / 2 && !list.empty(); ++i) list.push_back(list[rng() % list.size()]);
    for (int i = 0; i < more / 2; ++i) list.push_back(-1 - static_cast<std::int64_t>(rng() % 3));
    std::shuffle(list.begin(), list.end(), rng);
  }
  return lists;
}

/// Twice the error of the cpu kernels, which compute alike with the same rounding of results, and `more`.
inline void expect_as_good(const Tensor& got, const Tensor& of_cpu, const std::vector<double>& want, const char* what,
                           double more = 2e-6) {
  const double bound = 2 * testing::relative_error(of_cpu, want) + more;
  EXPECT_LE(testing::relative_error(got, want), bound) << what;
}

}  // namespace tandem::testing_gpu
