// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tandem/plugin/transport.h"

namespace tandem::detail {

/// Transports that are part of the library.
std::vector<const tandem_transport*> static_transports();
/// Throws unsupported, listing what there is.
const tandem_transport& find_transport(std::string_view name);

/// Why `transport` cannot be used on this machine, or "" if nothing is known against it.
std::string why_unavailable(const tandem_transport& transport);

/// Makes `transport`, which must live to the end of the process, known under its name. For tests.
void add_transport(const tandem_transport& transport);

}  // namespace tandem::detail
