// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <type_traits>

namespace tandem::nccl {

/// What every NCCL in use has.
#define TANDEM_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)              \
  X(ncclGetUniqueId)             \
  X(ncclGetErrorString)          \
  X(ncclGetLastError)            \
  X(ncclCommInitRankConfig)      \
  X(ncclCommGetAsyncError)       \
  X(ncclCommFinalize)            \
  X(ncclCommDestroy)             \
  X(ncclCommAbort)               \
  X(ncclCommRegister)            \
  X(ncclCommDeregister)          \
  X(ncclMemAlloc)                \
  X(ncclMemFree)                 \
  X(ncclAllGather)               \
  X(ncclReduceScatter)           \
  X(ncclSend)                    \
  X(ncclRecv)                    \
  X(ncclGroupStart)              \
  X(ncclGroupEnd)

/// What some lack. Their types are spelled out, as the nccl.h of the build may be too old for them as well.
using RevokeFunction = ncclResult_t(ncclComm_t comm, int flags);
using RegisterWindowFunction = ncclResult_t(ncclComm_t comm, void* memory, std::size_t bytes, void** window, int flags);
using DeregisterWindowFunction = ncclResult_t(ncclComm_t comm, void* window);
#define TANDEM_NCCL_OPTIONAL_FUNCTIONS(X)           \
  X(RevokeFunction, ncclCommRevoke)                 \
  X(RegisterWindowFunction, ncclCommWindowRegister) \
  X(DeregisterWindowFunction, ncclCommWindowDeregister)

template <auto& function>
using PointerTo = std::remove_reference_t<decltype(function)>*;

/// NCCL, found when it is needed: nothing links it, so a build with this code also starts where there is none.
struct Library {
  static constexpr int oldest = NCCL_VERSION(2, 19, 0);

#define TANDEM_NCCL_MEMBER(name) PointerTo<::name> name = nullptr;
  TANDEM_NCCL_FUNCTIONS(TANDEM_NCCL_MEMBER)
#undef TANDEM_NCCL_MEMBER
#define TANDEM_NCCL_OPTIONAL_MEMBER(type, name) type* name = nullptr;
  TANDEM_NCCL_OPTIONAL_FUNCTIONS(TANDEM_NCCL_OPTIONAL_MEMBER)  ///< null where NCCL has none
#undef TANDEM_NCCL_OPTIONAL_MEMBER

  int version = 0;   ///< as ncclGetVersion counts: 22809 is 2.28.9
  std::string path;  ///< the file it came from

  /// Loads `name`, a file or what the dynamic linker looks for. It stays loaded. Throws unsupported: there is none, it
  /// is not NCCL, or it is older than `oldest`; the text says which.
  static Library load(const std::string& name);
};

/// The one of this process: TANDEM_NCCL_LIBRARY, or else libnccl.so.2, which is PyTorch's if PyTorch has loaded its
/// own. Found by the first call that succeeds. Throws unsupported as load() does. Any thread.
const Library& library();

/// Why library() throws, or "" if it does not.
std::string why_unavailable();

/// "2.28.9"
std::string version_text(int version);

/// Throws transport, naming `call`, unless `result` is a success or in progress. `comm` may be null; NCCL's own last
/// message goes into the text.
void check(const Library& nccl, ncclResult_t result, const char* call, ncclComm_t comm);

}  // namespace tandem::nccl
