// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "tandem/plugin/transport.h"

namespace tandem::detail {

/// Transports that are part of the library.
std::vector<const tandem_transport*> static_transports();
/// Throws unsupported, listing what there is.
const tandem_transport& find_transport(std::string_view name);

}  // namespace tandem::detail
