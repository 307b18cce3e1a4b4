// SPDX-License-Identifier: Apache-2.0
#include "transports/cuda_p2p/region.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver.hpp"
#include "tandem/error.hpp"

namespace tandem::cuda_p2p {

using detail::cuda::check;
using detail::cuda::check_quietly;
using detail::cuda::driver;

namespace {

CUmemAllocationProp properties(int ordinal) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = ordinal;
  return prop;
}

}  // namespace

Region Region::create(std::uint64_t bytes, const detail::cuda::Context& context) {
  const detail::cuda::DeviceGuard guard(context);
  const detail::cuda::RelaxedCapture relaxed;
  const CUmemAllocationProp prop = properties(context.ordinal);
  std::size_t unit = 0;
  check(driver().cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity", context.ordinal);
  Region region;
  region.context_ = context;
  region.bytes_ = (std::max<std::uint64_t>(bytes, 1) + unit - 1) / unit * unit;
  check(driver().cuMemCreate(&region.handle_, static_cast<std::size_t>(region.bytes_), &prop, 0), "cuMemCreate",
        context.ordinal);
  int fd = -1;
  check(driver().cuMemExportToShareableHandle(&fd, region.handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", context.ordinal);
  region.fd_ = Fd(fd);
  region.map();
  return region;
}

Region Region::open(Fd fd, std::uint64_t bytes, const detail::cuda::Context& context) {
  const detail::cuda::DeviceGuard guard(context);
  const detail::cuda::RelaxedCapture relaxed;
  Region region;
  region.context_ = context;
  region.bytes_ = bytes;
  // CUDA takes a descriptor as a pointer-sized number.
  auto* const as_handle = std::bit_cast<void*>(static_cast<std::intptr_t>(fd.get()));
  check(driver().cuMemImportFromShareableHandle(&region.handle_, as_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle", context.ordinal);
  region.map();
  return region;
}

void Region::map() {
  const auto size = static_cast<std::size_t>(bytes_);
  check(driver().cuMemAddressReserve(&address_, size, 0, 0, 0), "cuMemAddressReserve", context_.ordinal);
  reserved_ = true;
  check(driver().cuMemMap(address_, size, 0, handle_, 0), "cuMemMap", context_.ordinal);
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = context_.ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver().cuMemSetAccess(address_, size, &access, 1), "cuMemSetAccess", context_.ordinal);
}

Region::~Region() {
  if (handle_ == 0 && !reserved_) return;
  const detail::cuda::QuietDeviceGuard guard(context_);
  if (!guard) return;
  const detail::cuda::RelaxedCapture relaxed;
  const auto size = static_cast<std::size_t>(bytes_);
  if (mapped_) check_quietly(driver().cuMemUnmap(address_, size), "cuMemUnmap", context_.ordinal);
  if (reserved_) check_quietly(driver().cuMemAddressFree(address_, size), "cuMemAddressFree", context_.ordinal);
  if (handle_ != 0) check_quietly(driver().cuMemRelease(handle_), "cuMemRelease", context_.ordinal);
}

void Region::swap(Region& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(fd_, other.fd_);
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_, other.reserved_);
  std::swap(mapped_, other.mapped_);
}

}  // namespace tandem::cuda_p2p
