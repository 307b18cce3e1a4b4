// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/kernel_set.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/cuda/check.hpp"
#include "device/impl.hpp"
#include "kernels/cuda/sm90/indexer_loss_launch.hpp"
#include "kernels/cuda/sm90/plain_lists.hpp"
#include "kernels/cuda/sm90/sm90_kernels.hpp"
#include "kernels/cuda/sm90/sparse_forward_launch.hpp"

namespace tandem::detail::cuda::sm90 {
namespace {

/// Raised by one when any result of these kernels changes by a bit.
constexpr std::uint32_t kernels_version = 4;

/// Enqueues the copy of a tensor of up to three dimensions into dense memory.
void pack(void* to, const Tensor& t, const NativeStream& on) {
  const std::size_t width = size_of(t.dtype()) * static_cast<std::size_t>(t.size(t.dims() - 1));
  const auto copy = [&](std::size_t at, const Tensor& from, std::size_t to_pitch, std::int64_t pitch,
                        std::int64_t rows) {
    check(cudaMemcpy2DAsync(static_cast<std::byte*>(to) + at, to_pitch, from.data(),
                            static_cast<std::size_t>(pitch) * size_of(t.dtype()), width, static_cast<std::size_t>(rows),
                            cudaMemcpyDeviceToDevice, on.handle),
          "cudaMemcpy2DAsync", on.context.ordinal);
  };
  if (t.dims() < 3) return copy(0, t, width, t.dims() == 1 ? t.size(0) : t.stride(0), t.dims() == 1 ? 1 : t.size(0));
  const std::int64_t inner = t.size(1);
  const std::size_t row = width * static_cast<std::size_t>(inner);
  for (std::int64_t i = 0; i < inner; ++i) {
    const Tensor column = Tensor::from_raw(
        static_cast<std::byte*>(t.data()) + size_of(t.dtype()) * static_cast<std::size_t>(i * t.stride(1)), t.dtype(),
        {t.size(0), t.size(2)}, {t.stride(0), 1});
    copy(static_cast<std::size_t>(i) * width, column, row, t.stride(0), t.size(0));
  }
}

}  // namespace

bool dense(const Tensor& t) {
  std::int64_t stride = 1;
  for (int dim = t.dims() - 1; dim >= 0; --dim) {
    if (t.size(dim) > 1 && t.stride(dim) != stride) return false;
    stride *= t.size(dim);
  }
  return true;
}

bool on_granule(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0; }

bool aligned(const Tensor& t) {
  const auto granule = static_cast<std::int64_t>(16 / size_of(t.dtype()));
  for (int dim = 0; dim + 1 < t.dims(); ++dim) {
    if (t.size(dim) > 1 && t.stride(dim) % granule != 0) return false;
  }
  return on_granule(t);
}

bool takes_topk(std::int64_t topk) { return topk % 64 == 0 && topk <= generic::most_topk; }

void expect_dense(const char* name, const Tensor& t) {
  if (t.elements() == 0 || dense(t)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: kernel set cuda.sm90 needs it dense in memory, got {}", name, t.describe()));
}

Sm90Kernels::Sm90Kernels(const Device& device, bool deterministic) : GenericKernels(device, deterministic) {
  const DeviceGuard guard(context());
  check(launchers::load_indexer_kernels(), "loading the indexer", context().ordinal);
  check(launchers::load_sparse_forward_kernels(), "loading the sparse forward", context().ordinal);
  check(launchers::load_sparse_backward_kernels(), "loading the sparse backward", context().ordinal);
  check(launchers::load_indexer_loss_kernels(), "loading the indexer loss", context().ordinal);
  check(launchers::load_plain_lists_kernel(), "loading the check of lists", context().ordinal);
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context().ordinal), "cudaDeviceGetAttribute",
        context().ordinal);
  multiprocessors_ = count;
}

std::uint32_t Sm90Kernels::numerics_version() const {
  return (kernels_version << 16) | GenericKernels::numerics_version();
}

ConcurrentRows Sm90Kernels::concurrent_rows(std::int64_t heads, std::int64_t index_heads) const {
  // A multiprocessor has a query tile of the indexer, or 64 heads of a row.
  const std::int64_t blocks = std::clamp<std::int64_t>((heads + 63) / 64, 1, multiprocessors_);
  const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(index_heads)));
  return {multiprocessors_ * (256 / std::clamp<std::int64_t>(rounded, 8, 64)), multiprocessors_ / blocks};
}

const void* Sm90Kernels::packed(const char* name, const Tensor& t, const Stream& stream) {
  if (!t.valid() || t.elements() == 0 || (dense(t) && on_granule(t))) return t.data();
  const Tensor copy = scratch(name, stream, t.dtype(), t.elements());
  pack(copy.data(), t, native(stream));
  return copy.data();
}

Sm90Kernels::SortedOut Sm90Kernels::sort_out(RowRange rows, std::int64_t keys, const Tensor& indices,
                                             const Tensor& length, bool promised, const Stream& stream) {
  if (promised) return {length.data_as<const std::int32_t>(), std::nullopt};
  const std::int64_t all = indices.size(0), topk = indices.size(1);
  const Tensor lists = scratch("lists", stream, DType::i32, 3 * all + 1);
  launchers::PlainListsArgs args;
  args.row_begin = rows.begin;
  args.row_end = rows.end;
  args.keys = keys;
  args.topk = static_cast<std::int32_t>(topk);
  args.indices = indices.data_as<const std::int32_t>();
  args.length = length.data_as<const std::int32_t>();
  args.plain_length = lists.data_as<std::int32_t>();
  args.other = args.plain_length + all;
  args.others = args.other + all;
  args.other_count = args.others + all;
  check(launchers::launch_plain_lists(args, native(stream).handle), "the check of lists", context().ordinal);
  return {args.plain_length, generic::ChosenRows{args.others, args.other_count, args.other}};
}

std::string why_not(const Device& device) {
  const int ordinal = device.impl().cuda_ordinal();
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "cudaDeviceGetAttribute", ordinal);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "cudaDeviceGetAttribute", ordinal);
  if (major == 9 && minor == 0) return "";
  return fmt::format("it is for compute capability 9.0, this GPU has {}.{}", major, minor);
}

std::shared_ptr<KernelSet> make_kernels(const Device& device, bool deterministic) {
  return std::make_shared<Sm90Kernels>(device, deterministic);
}

}  // namespace tandem::detail::cuda::sm90
