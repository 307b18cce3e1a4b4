// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "tandem/export.hpp"

namespace tandem {

/// Every way a call or an asynchronous operation can fail. One list, so that names cannot drift from values.
#define TANDEM_ERROR_CODES(X)                                                      \
  X(invalid_argument, "a value is outside what the call accepts")                  \
  X(invalid_usage, "the call is right, its place or order is not")                 \
  X(unsupported, "this build, device or transport cannot do it")                   \
  X(timeout, "a deadline passed")                                                  \
  X(aborted, "this rank, or a peer, called abort")                                 \
  X(peer_failed, "another rank died or left early")                                \
  X(transport, "bytes could not be moved")                                         \
  X(device, "a device call or a task on a stream failed")                          \
  X(out_of_memory, "an allocation failed")                                         \
  X(version_mismatch, "ranks run versions, layouts or settings that do not agree") \
  X(internal, "a fault of tandem itself")

enum class ErrorCode : std::int32_t {
  ok = 0,
#define TANDEM_ERROR_ENUMERATOR(name, text) name,
  TANDEM_ERROR_CODES(TANDEM_ERROR_ENUMERATOR)
#undef TANDEM_ERROR_ENUMERATOR
};

/// The enumerator's name, for example "peer_failed".
TANDEM_EXPORT const char* to_string(ErrorCode code) noexcept;

/// Thrown by calls that fail at once, and by waits on an operation that failed.
/// `rank` is the rank the error speaks of (the dead peer, the rank that timed out), or -1; `op` is the sequence number
/// of the operation in its communicator, or -1. what() already contains both.
class TANDEM_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int rank = -1, std::int64_t op = -1);
  ErrorCode code() const noexcept { return code_; }
  int rank() const noexcept { return rank_; }
  std::int64_t op() const noexcept { return op_; }

 private:
  ErrorCode code_;
  int rank_;
  std::int64_t op_;
};

/// The same facts as a value: how an asynchronous operation stands. A value; copy it freely.
struct TANDEM_EXPORT Status {
  ErrorCode code = ErrorCode::ok;
  std::string message;
  int rank = -1;
  std::int64_t op = -1;

  bool ok() const noexcept { return code == ErrorCode::ok; }
  /// Throws Error if not ok.
  void throw_if_failed() const;
};

}  // namespace tandem
