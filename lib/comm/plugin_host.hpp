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

/// Makes `transport`, which must live to the end of the process, known under its name. For tests.
void add_transport(const tandem_transport& transport);

}  // namespace tandem::detail
