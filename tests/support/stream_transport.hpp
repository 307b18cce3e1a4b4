// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tandem/deadline.hpp"

/// A stream-ordered, one-sided transport between ranks of this process, on streams of host devices: what cuda_p2p is on
/// GPUs, for machines that have none. It keeps to the protocol of tandem/plugin/transport.h by the letter, takes its
/// time between any two steps (options delay_us and seed), and writes down what its host does wrong.
namespace tandem::testing {

/// Makes it known to communicators as "stream"; idempotent.
void register_stream_transport();

/// What was done wrong since the last call: flags reset under a waiting stream or before the bytes came, transfers that
/// do not match, writes outside of regions.
std::vector<std::string> take_stream_violations();

/// A transfer whose bytes are about to move.
struct StreamDelivery {
  int src = 0;
  int dst = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};

/// While it lives and is not released, transfers that match wait, and whatever their sender pushes to the same receiver
/// later. One at a time.
class StreamGate {
 public:
  explicit StreamGate(std::function<bool(const StreamDelivery&)> matches);
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  void release();
  /// Blocks until `count` transfers have been held: true, or false at the deadline.
  bool wait_held(std::uint64_t count, Deadline deadline) const;
};

}  // namespace tandem::testing
