// SPDX-License-Identifier: Apache-2.0
#include "transports/nccl/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/env.hpp"
#include "tandem/error.hpp"

namespace tandem::nccl {

namespace {

constexpr const char* usual_name = "libnccl.so.2";

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::unsupported, fmt::format("no usable NCCL: {}", reason));
}

void* symbol(void* handle, const std::string& name, const char* function) {
  void* const found = ::dlsym(handle, function);
  if (found == nullptr) refuse(fmt::format("{} has no {}", name, function));
  return found;
}

std::string file_of(void* function, const std::string& otherwise) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

Library Library::load(const std::string& name) {
  // Never closed: NCCL has threads of its own, and work on streams may outlive every communicator.
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    refuse(fmt::format("{}; TANDEM_NCCL_LIBRARY can name one", reason != nullptr ? reason : name));
  }
  Library table;
  // Before the rest: an old one lacks functions, and what is wrong is its age.
  table.ncclGetVersion = reinterpret_cast<decltype(&::ncclGetVersion)>(symbol(handle, name, "ncclGetVersion"));
  table.path = file_of(reinterpret_cast<void*>(table.ncclGetVersion), name);
  if (const ncclResult_t result = table.ncclGetVersion(&table.version); result != ncclSuccess)
    refuse(fmt::format("{} does not tell its version: error {}", table.path, static_cast<int>(result)));
  if (table.version < oldest) {
    refuse(fmt::format("{} is version {}, and {} is the oldest that will do", table.path, version_text(table.version),
                       version_text(oldest)));
  }
#define TANDEM_NCCL_LOAD(function) \
  table.function = reinterpret_cast<decltype(&::function)>(symbol(handle, name, #function));
  TANDEM_NCCL_FUNCTIONS(TANDEM_NCCL_LOAD)
#undef TANDEM_NCCL_LOAD
#define TANDEM_NCCL_LOAD_OPTIONAL(type, function) \
  table.function = reinterpret_cast<decltype(table.function)>(::dlsym(handle, #function));
  TANDEM_NCCL_OPTIONAL_FUNCTIONS(TANDEM_NCCL_LOAD_OPTIONAL)
#undef TANDEM_NCCL_LOAD_OPTIONAL
  return table;
}

const Library& library() {
  static const Library table = Library::load(Env::read().nccl_library.value_or(usual_name));
  return table;
}

std::string why_unavailable() {
  try {
    library();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check(const Library& nccl, ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const detail = nccl.ncclGetLastError(comm);
  throw Error(ErrorCode::transport,
              fmt::format("{} failed: {}{}{}", call, nccl.ncclGetErrorString(result),
                          detail != nullptr && *detail != '\0' ? ": " : "", detail != nullptr ? detail : ""));
}

}  // namespace tandem::nccl
