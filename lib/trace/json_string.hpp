// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tandem::detail {

/// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD: a name may come from anywhere, the
/// document must stay valid.
std::string json_string(std::string_view text);

}  // namespace tandem::detail
