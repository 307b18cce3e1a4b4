// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tandem::cli {

/// The source that this command was built from.
struct BuiltFrom {
  const char* commit;  ///< or "unknown" where it was not built in a git repository
  bool dirty;          ///< files differed from the commit
};

BuiltFrom built_from() noexcept;

}  // namespace tandem::cli
