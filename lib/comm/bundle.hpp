// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/endpoint.hpp"

namespace tandem::detail {

/// Transfers of a post that follow each other, to or from the same peer with the same flag, put together for a trip
/// through host memory. Both ends put the same together, as both name the same flags.
///
/// A bundle travels in pieces, so that a large one is in several places at once: while one piece is copied from a GPU
/// another is on the network. All pieces but the last are of `piece_bytes` and the last is smaller, be it of no bytes:
/// so bundles of different sizes differ in a piece that both have, and the transport notices.
struct Bundle {
  static constexpr std::size_t piece_bytes = std::size_t{2} << 20;

  /// Bytes that lie together, at `data` and in the bundle.
  struct Segment {
    std::byte* data = nullptr;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  int peer = 0;
  std::uint32_t flag = 0;
  std::uint64_t tag = 0;  ///< of the first transfer, and of all pieces
  std::size_t bytes = 0;
  std::vector<Segment> segments;

  std::size_t pieces() const noexcept { return bytes / piece_bytes + 1; }
  std::size_t bytes_of(std::size_t piece) const noexcept { return std::min(piece_bytes, bytes - piece * piece_bytes); }
  /// Calls `use(data, offset, bytes)` for what of each segment lies in `piece`.
  template <class Use>
  void for_each_part(std::size_t piece, Use&& use) const {
    const std::size_t begin = piece * piece_bytes;
    const std::size_t end = begin + bytes_of(piece);
    for (const Segment& s : segments) {
      const std::size_t from = std::max(begin, s.offset);
      const std::size_t to = std::min(end, s.offset + s.bytes);
      if (from < to) use(s.data + (from - s.offset), from, to - from);
    }
  }
};

std::vector<Bundle> make_bundles(std::span<const WireTransfer> transfers);
std::size_t bytes_of(std::span<const Bundle> bundles) noexcept;

}  // namespace tandem::detail
