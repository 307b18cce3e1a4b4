// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::cli {

/// All bytes of a file, which may be `most` (a device may never end). Throws UsageError naming `option`, the file and
/// the reason.
std::string read_input_file(std::string_view option, const std::string& path, std::size_t most);

/// Throws UsageError unless write_atomically could write `path` now. Leaves nothing behind.
void test_writable(std::string_view option, const std::string& path);

/// The file has the old content or all of the new, whatever happens. Throws Error naming the file and the reason.
void write_atomically(const std::string& path, std::string_view content);

}  // namespace tandem::cli
