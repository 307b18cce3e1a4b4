// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bootstrap/sockets.hpp"
#include "tandem/deadline.hpp"

namespace tandem::detail {

/// The addresses of a name, or of a text address, in the resolver's order. Blocks up to the deadline. On failure the
/// list is empty and `reason` says why. A thread stays behind only if the system's resolver takes longer than the
/// deadline; it harms nobody, also while the process ends.
std::vector<boost::asio::ip::tcp::endpoint> resolve(const HostPort& where, Deadline deadline, std::string* reason);

}  // namespace tandem::detail
