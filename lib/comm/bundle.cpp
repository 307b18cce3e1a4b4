// SPDX-License-Identifier: Apache-2.0
#include "comm/bundle.hpp"

namespace tandem::detail {

std::vector<Bundle> make_bundles(std::span<const WireTransfer> transfers) {
  std::vector<Bundle> bundles;
  for (const WireTransfer& t : transfers) {
    if (bundles.empty() || bundles.back().peer != t.peer || bundles.back().flag != t.flag)
      bundles.push_back({t.peer, t.flag, t.tag, 0, {}});
    Bundle& bundle = bundles.back();
    const auto bytes = static_cast<std::size_t>(t.bytes);
    auto* const data = static_cast<std::byte*>(t.data);
    // What is adjacent at both ends of the copy takes one call.
    if (!bundle.segments.empty() && bundle.segments.back().data + bundle.segments.back().bytes == data) {
      bundle.segments.back().bytes += bytes;
    } else if (bytes > 0) {
      bundle.segments.push_back({data, bundle.bytes, bytes});
    }
    bundle.bytes += bytes;
  }
  return bundles;
}

std::size_t bytes_of(std::span<const Bundle> bundles) noexcept {
  std::size_t sum = 0;
  for (const Bundle& bundle : bundles) sum += bundle.bytes;
  return sum;
}

}  // namespace tandem::detail
