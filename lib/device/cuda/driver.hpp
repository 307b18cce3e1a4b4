// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudaTypedefs.h>

/// The driver functions in use, each with the version of the driver interface in which its present form appeared.
#define TANDEM_DRIVER_FUNCTIONS(X)        \
  X(cuGetErrorName, 6000)                 \
  X(cuGetErrorString, 6000)               \
  X(cuDeviceGet, 2000)                    \
  X(cuDeviceGetAttribute, 2000)           \
  X(cuDevicePrimaryCtxRetain, 7000)       \
  X(cuCtxPushCurrent, 4000)               \
  X(cuCtxPopCurrent, 4000)                \
  X(cuStreamWaitEvent, 3020)              \
  X(cuStreamWaitValue32, 11070)           \
  X(cuStreamWriteValue32, 11070)          \
  X(cuStreamBatchMemOp, 11070)            \
  X(cuMemGetAllocationGranularity, 10020) \
  X(cuMemCreate, 10020)                   \
  X(cuMemRelease, 10020)                  \
  X(cuMemAddressReserve, 10020)           \
  X(cuMemAddressFree, 10020)              \
  X(cuMemMap, 10020)                      \
  X(cuMemUnmap, 10020)                    \
  X(cuMemSetAccess, 10020)                \
  X(cuMemExportToShareableHandle, 10020)  \
  X(cuMemImportFromShareableHandle, 10020)

namespace tandem::detail::cuda {

/// What the library calls of libcuda. Nothing links libcuda: a build with CUDA code also starts where there is none.
/// A handle 0 means the legacy default stream in all of them.
struct Driver {
#define TANDEM_DRIVER_MEMBER(name, version) PFN_##name##_v##version name = nullptr;
  TANDEM_DRIVER_FUNCTIONS(TANDEM_DRIVER_MEMBER)
#undef TANDEM_DRIVER_MEMBER
};

/// Filled by the first call. Throws unsupported if the driver lacks one of them, or there is none.
const Driver& driver();
/// The same, for tests that put functions of their own in front, before anything else uses it.
Driver& replaceable_driver();

}  // namespace tandem::detail::cuda
