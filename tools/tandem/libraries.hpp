// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

/// A library of others that transports may use, as the dynamic linker finds it now.
struct FoundLibrary {
  std::string name;     ///< "NCCL"
  std::string file;     ///< what was looked for: "libnccl.so.2"
  std::string version;  ///< "2.28.9"; "" if it is not there
  std::string missing;  ///< why it is not; "" if it is
};

/// NCCL and UCX. Loads them, and lets go of them again.
std::vector<FoundLibrary> find_libraries();
/// Looks for one function in `file`, whose result `read` turns into a version. For find_libraries and its test.
FoundLibrary find_library(const std::string& name, const std::string& file, const char* function,
                          std::string (*read)(void* function));

}  // namespace tandem::cli
