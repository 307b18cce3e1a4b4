// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tandem/deadline.hpp"
#include "tandem/error.hpp"
#include "tandem/export.hpp"

/// Where work runs: Device, Stream, Event and Buffer. All four are small handles; copies name the same object, and all
/// of them may be used from any thread. Work given to a stream runs in the order it was given, and calls return before
/// it ran.
namespace tandem {

namespace detail {
class DeviceImpl;
class StreamImpl;
class EventImpl;
}  // namespace detail

class Device;
class Stream;
class Event;
class Buffer;

enum class DeviceKind { host, cuda };

/// How the host device runs its streams.
struct HostDeviceOptions {
  /// 0: every stream has a thread of its own. k > 0: all streams share k first-in-first-out queues (stream i uses queue
  /// i mod k), and streams made with `copy = true` share one more. k = 1 behaves like a GPU with
  /// CUDA_DEVICE_MAX_CONNECTIONS=1: a wait at the head of a queue holds up everything enqueued behind it, whichever
  /// stream it belongs to, so enqueue orders that deadlock there deadlock here too.
  int queues = 0;
  /// Shown in traces and errors.
  std::string name = "host";
  /// Fills every allocation with bytes 0xFF, which all float types read as NaN: shows what is used before it is
  /// written.
  bool poison = false;
};

/// Bytes that a device has given out, as they were asked for.
struct MemoryUse {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;  ///< most that was live at once
};

struct StreamOptions {
  std::string name = "stream";
  /// This stream only copies. A folded host device gives it the copy queue.
  bool copy = false;
};

/// A device of this process. Two calls of host() make two devices that share nothing, one for each rank of a process
/// that plays several.
class TANDEM_EXPORT Device {
 public:
  /// Throws invalid_argument if `queues` is negative.
  static Device host(const HostDeviceOptions& options = {});

  DeviceKind kind() const noexcept;
  std::string describe() const;
  Stream create_stream(const StreamOptions& options = {}) const;
  Event create_event() const;
  /// `bytes` of memory aligned to 256 bytes, contents undefined; 0 bytes are allowed. Throws out_of_memory.
  Buffer allocate(std::size_t bytes) const;
  MemoryUse memory_use() const noexcept;
  /// Blocks until every stream of the device is idle. Throws timeout; throws device if a task of one had failed.
  void synchronize(Deadline deadline) const;
  bool operator==(const Device& other) const noexcept { return impl_ == other.impl_; }

  explicit Device(std::shared_ptr<detail::DeviceImpl> impl) : impl_(std::move(impl)) {}
  detail::DeviceImpl& impl() const noexcept { return *impl_; }
  const std::shared_ptr<detail::DeviceImpl>& handle() const noexcept { return impl_; }

 private:
  std::shared_ptr<detail::DeviceImpl> impl_;
};

/// An ordered queue of work.
///
/// If a task throws, the stream keeps the first exception, runs what follows all the same (so that whoever waits on it
/// is released), and every later synchronize() throws an Error with code device and that exception's text. The last
/// handle's destruction does not wait for the work: queued work still runs.
class TANDEM_EXPORT Stream {
 public:
  Stream() = default;
  bool valid() const noexcept { return impl_ != nullptr; }
  Device device() const;
  const std::string& name() const;

  /// Later work of this stream starts only when the work that `event` last recorded (at this call) is done. An event
  /// that was never recorded holds nothing up.
  void wait(const Event& event) const;
  /// `event` now stands for the work given to this stream so far.
  void record(const Event& event) const;
  /// Copies `bytes`; the ranges must not overlap and must live until the copy has run.
  void copy(void* destination, const void* source, std::size_t bytes) const;
  /// Runs `task` on the stream's own thread (host) when everything before it is done.
  void run(std::function<void()> task) const;
  /// Blocks the caller until the work given so far is done. Throws timeout, or device if a task failed.
  void synchronize(Deadline deadline) const;
  /// True if no work is pending.
  bool idle() const;

  explicit Stream(std::shared_ptr<detail::StreamImpl> impl) : impl_(std::move(impl)) {}
  detail::StreamImpl& impl() const;  // throws invalid_usage on a default-made stream

 private:
  std::shared_ptr<detail::StreamImpl> impl_;
};

/// A point in a stream's work.
class TANDEM_EXPORT Event {
 public:
  Event() = default;
  bool valid() const noexcept { return impl_ != nullptr; }
  /// True if the work of the last record() is done, or if there was none.
  bool query() const;
  /// Blocks the caller. Throws timeout.
  void synchronize(Deadline deadline) const;

  explicit Event(std::shared_ptr<detail::EventImpl> impl) : impl_(std::move(impl)) {}
  detail::EventImpl& impl() const;  // throws invalid_usage on a default-made event

 private:
  std::shared_ptr<detail::EventImpl> impl_;
};

/// Memory of a device. The last handle frees it, so keep one for as long as work that touches it may run.
class TANDEM_EXPORT Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<void> memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  const std::shared_ptr<void>& owner() const noexcept { return memory_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace tandem
