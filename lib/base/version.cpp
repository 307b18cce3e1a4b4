// SPDX-License-Identifier: Apache-2.0
#include "tandem/version.hpp"

namespace tandem {

const char* version() noexcept { return TANDEM_VERSION_STRING; }

}  // namespace tandem
