// SPDX-License-Identifier: Apache-2.0
// The functions of nccl.h that tandem uses, for tests: ranks share a GPU, and messages go through host memory, enqueued
// on streams without the CPU's help, so that they wait, hang and are captured like NCCL's. It can be told to fail:
//   TANDEM_FAKE_NCCL_VERSION=21803     ncclGetVersion says so
//   TANDEM_FAKE_NCCL_FAIL_INIT=1       communicators are never made
//   TANDEM_FAKE_NCCL_ERROR_AFTER=n     the groups after the n-th hang, and soon an error is reported
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/fake_nccl/comm.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using namespace tandem::fake_nccl;

namespace {

thread_local int depth = 0;
thread_local std::vector<Message> messages;

ncclResult_t add(bool sends, const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t stream) {
  if (depth == 0 || type != ncclUint8) {
    std::fprintf(stderr, "fake nccl: a message outside of a group, or one that is not of bytes\n");
    return ncclInvalidUsage;
  }
  messages.push_back({comm, sends, static_cast<char*>(const_cast<void*>(memory)), count, type, peer, stream});
  return ncclSuccess;
}

template <class Body>
ncclResult_t guarded(const Body& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fake nccl: %s\n", e.what());
    return ncclUnhandledCudaError;
  }
}

}  // namespace

EXPORTED ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("TANDEM_FAKE_NCCL_VERSION", NCCL_VERSION_CODE));
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  std::snprintf(id->internal, sizeof(id->internal), "/tandem-fake-nccl-%d-%d", static_cast<int>(::getpid()), count++);
  return Meeting::create(id->internal) ? ncclSuccess : ncclSystemError;
}

EXPORTED const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : result == ncclRemoteError ? "remote error" : "some error";
}

EXPORTED const char* ncclGetLastError(ncclComm_t) { return "as the fake was told"; }

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                             ncclConfig_t* config) {
  return guarded([&] {
    if (config->blocking != 0) throw std::invalid_argument("communicators are non-blocking here");
    *comm = new ncclComm(id.internal, size, rank);
    return ncclInProgress;
  });
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state();
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->finalize(); }

EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->drain()) return ncclInternalError;
  comm->free();
  delete comm;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  comm->release();
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->release();
  return ncclCommDestroy(comm);
}

EXPORTED ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupEnd() {
  if (depth == 0 || --depth > 0) return ncclSuccess;
  std::map<ncclComm_t, std::vector<Message>> by_comm;
  for (const Message& m : messages) by_comm[m.comm].push_back(m);
  messages.clear();
  return guarded([&] {
    ncclResult_t result = ncclSuccess;
    for (const auto& [comm, group] : by_comm) {
      if (const ncclResult_t launched = comm->launch(group); launched != ncclSuccess) result = launched;
    }
    return result;
  });
}

EXPORTED ncclResult_t ncclSend(const void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream) {
  return add(true, memory, count, type, peer, comm, stream);
}

EXPORTED ncclResult_t ncclRecv(void* memory, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream) {
  return add(false, memory, count, type, peer, comm, stream);
}

// What tandem looks for but its transport does not use.
EXPORTED ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void**) { return ncclInvalidUsage; }
EXPORTED ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclInvalidUsage; }
EXPORTED ncclResult_t ncclMemAlloc(void**, std::size_t) { return ncclInvalidUsage; }
EXPORTED ncclResult_t ncclMemFree(void*) { return ncclInvalidUsage; }
EXPORTED ncclResult_t ncclAllGather(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
EXPORTED ncclResult_t ncclReduceScatter(const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                        cudaStream_t) {
  return ncclInvalidUsage;
}
