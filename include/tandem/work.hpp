// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/plan.hpp"
#include "tandem/tensor.hpp"

namespace tandem {

namespace detail {
class OpState;
}

/// How one chunk of one field travelled. Times are nanoseconds of the steady clock of this rank; 0 = not yet.
struct ChunkTiming {
  std::string field;
  ChunkId chunk = 0;
  int peer = -1;
  std::uint64_t bytes = 0;
  std::int64_t posted_ns = 0;
  std::int64_t arrived_ns = 0;
  std::string path;  ///< "tcp", "loopback", "local" (own rows)
};

/// The handle of an asynchronous operation. Cheap to copy, safe in any thread, may be waited on any number of times by
/// any stream. Dropping all handles does not cancel the operation.
class TANDEM_EXPORT Work {
 public:
  Work() = default;
  bool valid() const noexcept { return op_ != nullptr; }

  /// Later work of `stream` starts only when everything of the operation has arrived here and its sources have been
  /// read, so that the caller may overwrite them. The host does not block. Throws the operation's error if it has
  /// failed by now; if it fails later, the stream is released (what it then reads is undefined, but its memory is
  /// valid) and status() and the next wait say so.
  void wait(const Stream& stream) const;
  /// The same for the arrival of one field, or of one chunk of it. A chunk of which nothing is needed here is there at
  /// once. Throws invalid_argument for an unknown field or chunk.
  void wait(const Stream& stream, std::string_view field) const;
  void wait(const Stream& stream, std::string_view field, ChunkId chunk) const;

  /// Blocks the caller until all of it is done. Throws the operation's error if it failed; throws timeout, saying which
  /// chunks of which fields are missing from which ranks, if the deadline passes first: the operation stays in flight.
  void synchronize(Deadline deadline) const;
  /// True when done or failed.
  bool done() const;
  /// ok while in flight and after success; else the first error, for ever.
  Status status() const;

  /// Transports that moved bytes of this operation, sorted: {"tcp"}.
  std::vector<std::string> paths() const;
  std::vector<ChunkTiming> chunks() const;
  /// Bytes that this rank received from (sent to) other ranks in this operation so far, payload only.
  std::uint64_t received_bytes() const;
  std::uint64_t sent_bytes() const;
  /// Where a gather puts `field`: landed rows x row shape. Throws invalid_argument for another name or kind of
  /// operation.
  Tensor landed(std::string_view field) const;

  explicit Work(std::shared_ptr<detail::OpState> op) : op_(std::move(op)) {}

 private:
  detail::OpState& op() const;
  std::shared_ptr<detail::OpState> op_;
};

}  // namespace tandem
