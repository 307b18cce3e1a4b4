// SPDX-License-Identifier: Apache-2.0
#include "built_from.hpp"

#include "tandem/built_from.inc"  // made by every build: nothing else may include it

namespace tandem::cli {

BuiltFrom built_from() noexcept { return {TANDEM_COMMIT, TANDEM_DIRTY}; }

}  // namespace tandem::cli
