// SPDX-License-Identifier: Apache-2.0
#include "libraries.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tandem::cli {

namespace {

std::string reason() {
  const char* const why = dlerror();
  return why != nullptr ? why : "the dynamic linker gives no reason";
}

std::string nccl_version(void* function) {
  int version = 0;
  const int result = reinterpret_cast<int (*)(int*)>(function)(&version);
  if (result != 0) return "";
  // Since 2.9 there are two digits for the minor version.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return fmt::format("{}.{}.{}", major, minor, version % 100);
}

std::string ucx_version(void* function) { return reinterpret_cast<const char* (*)()>(function)(); }

}  // namespace

FoundLibrary find_library(const std::string& name, const std::string& file, const char* function,
                          std::string (*read)(void* function)) {
  FoundLibrary library{name, file, "", ""};
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.missing = reason();
    return library;
  }
  if (void* const found = dlsym(handle, function); found == nullptr) {
    library.missing = reason();
  } else if (library.version = read(found); library.version.empty()) {
    library.missing = fmt::format("{} of {} fails", function, file);
  }
  dlclose(handle);
  return library;
}

std::vector<FoundLibrary> find_libraries() {
  return {find_library("NCCL", "libnccl.so.2", "ncclGetVersion", nccl_version),
          find_library("UCX", "libucp.so.0", "ucp_get_version_string", ucx_version)};
}

}  // namespace tandem::cli
