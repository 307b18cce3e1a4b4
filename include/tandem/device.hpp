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

struct CudaDeviceOptions {
  /// As HostDeviceOptions::poison. Each allocation then also waits for its own filling.
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
  /// The GPU prefers this stream's work where it has a choice. Nothing on the host.
  bool high_priority = false;
};

/// A device of this process. Two calls of host() make two devices that share nothing, one for each rank of a process
/// that plays several.
class TANDEM_EXPORT Device {
 public:
  /// Throws invalid_argument if `queues` is negative.
  static Device host(const HostDeviceOptions& options = {});
  /// GPU number `ordinal` of those this process sees, in CUDA's order. Two calls make two devices that share the GPU
  /// and count memory and failures apart. The GPU's primary context stays for the life of the process, as under the
  /// CUDA runtime; the calling thread's current device is left as it was, here and in every other call.
  ///
  /// All kernels of the library are loaded here: a launch that had to load one would wait for the whole GPU, and with a
  /// stream that waits for a peer that could be for ever.
  ///
  /// Throws unsupported with the reason if there is no CUDA code in this build, no driver, no such GPU, or one that the
  /// kernels were not built for; device if CUDA fails.
  static Device cuda(int ordinal = 0, const CudaDeviceOptions& options = {});
  /// How many GPUs this process sees; 0 without driver or CUDA code.
  static int cuda_count() noexcept;

  DeviceKind kind() const noexcept;
  std::string describe() const;
  Stream create_stream(const StreamOptions& options = {}) const;
  Event create_event() const;
  /// `bytes` of memory aligned to 256 bytes, contents undefined; 0 bytes are allowed. Throws out_of_memory.
  Buffer allocate(std::size_t bytes) const;
  MemoryUse memory_use() const noexcept;
  /// Blocks until every stream that this device made or wraps is idle. Throws timeout; throws device if a task of one
  /// had failed.
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
///
/// On a GPU a call blocks while the GPU's queue is full, which takes about a thousand calls behind a stream that waits.
class TANDEM_EXPORT Stream {
 public:
  Stream() = default;
  /// A stream that the caller owns, a cudaStream_t of the same GPU; null names the legacy default stream. It must
  /// outlive the handles, and is not destroyed with them. Device::synchronize() covers it as long as a handle lives.
  /// Throws invalid_argument for a host device.
  static Stream from_native(const Device& device, void* cuda_stream, const std::string& name = "native");
  /// The cudaStream_t; null on the host.
  void* native() const;
  bool valid() const noexcept { return impl_ != nullptr; }
  Device device() const;
  const std::string& name() const;

  /// Later work of this stream starts only when the work that `event` last recorded (at this call) is done. An event
  /// that was never recorded holds nothing up.
  void wait(const Event& event) const;
  /// `event` now stands for the work given to this stream so far.
  void record(const Event& event) const;
  /// Copies `bytes`; the ranges must not overlap and must live until the copy has run. On a GPU either range may be in
  /// host memory; if that is not page-locked, the call may block until the copy is done.
  void copy(void* destination, const void* source, std::size_t bytes) const;
  /// Runs `task` when everything before it is done: on the stream's own thread (host), or on a thread of CUDA's that
  /// all streams may share. There it must not wait for another stream's work, and must not use CUDA; what it asks of
  /// this library's GPU devices throws invalid_usage. Whatever the closure holds goes when the task is done (host), or
  /// at the next use of any GPU device after that; not at all if the GPU died of an error before the task ran.
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
  /// The cudaEvent_t; null on the host.
  void* native() const;

  explicit Event(std::shared_ptr<detail::EventImpl> impl) : impl_(std::move(impl)) {}
  detail::EventImpl& impl() const;  // throws invalid_usage on a default-made event

 private:
  std::shared_ptr<detail::EventImpl> impl_;
};

/// Memory of a device. The last handle frees it, so keep one for as long as work that touches it may run. Freeing GPU
/// memory may wait for all work of that GPU: drop no handle while a stream waits for something that this thread is yet
/// to do.
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
