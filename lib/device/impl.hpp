// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tandem/device.hpp"

namespace tandem::detail {

struct RowRuns;  // device/rows.hpp
struct RowMove;
struct RowRounding;
struct RowSum;

/// A one-shot flag that the host sets from any thread and that streams wait for: how a transport's thread releases a
/// stream. On the host a flag with waiters; on CUDA a word in mapped memory that a plain store sets.
/// Keep it until it is set and the waits for it are done: a GPU's streams do not, and are released when it goes unset.
class SignalImpl {
 public:
  virtual ~SignalImpl() = default;
  /// Idempotent. What the setter wrote before is visible to whoever is released.
  virtual void set() noexcept = 0;
  virtual bool is_set() const noexcept = 0;
  /// Blocks the calling thread; false if the deadline passed.
  virtual bool wait(Deadline deadline) const = 0;
};

/// A place in a stream's work that a host thread can look at from afar: reached() calls nothing of the device, so that
/// it is allowed at any time, also while some stream is being captured.
class MarkImpl {
 public:
  virtual ~MarkImpl() = default;
  virtual bool reached() const noexcept = 0;
};

class EventImpl {
 public:
  virtual ~EventImpl() = default;
  virtual bool query() const = 0;
  virtual void synchronize(Deadline deadline) const = 0;
  virtual void* native() const noexcept { return nullptr; }
};

class StreamImpl {
 public:
  virtual ~StreamImpl() = default;
  virtual DeviceImpl& device() const = 0;
  virtual std::shared_ptr<DeviceImpl> device_handle() const = 0;
  virtual const std::string& name() const = 0;
  /// The same for all handles of one stream, and no other stream's before or after.
  virtual std::uint64_t id() const noexcept = 0;
  virtual void wait(EventImpl& event) = 0;
  virtual void record(EventImpl& event) = 0;
  /// `on_wait(begin_ns, end_ns)` runs on the stream when it is released; may be empty.
  virtual void wait(std::shared_ptr<const SignalImpl> signal,
                    std::function<void(std::int64_t, std::int64_t)> on_wait) = 0;
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void run(std::function<void()> task) = 0;
  /// Never on a stream that is being captured: a replay would write the mark again, which may be another's by then.
  virtual std::shared_ptr<const MarkImpl> leave_mark() = 0;
  /// Of the capture that records the work given, instead of running it; 0 if none does.
  virtual std::uint64_t capture() const { return 0; }
  // See device/rows.hpp.
  virtual void move_rows(const RowRuns& runs, std::span<const RowMove> moves,
                         const std::shared_ptr<const void>& keep) = 0;
  virtual void round_rows(const RowRuns& runs, const RowRounding& rounding,
                          const std::shared_ptr<const void>& keep) = 0;
  virtual void sum_rows(const RowSum& sum, const std::shared_ptr<const void>& keep) = 0;
  virtual void synchronize(Deadline deadline) = 0;
  virtual bool idle() const = 0;
  virtual void* native() const noexcept { return nullptr; }
};

class DeviceImpl {
 public:
  virtual ~DeviceImpl() = default;
  virtual DeviceKind kind() const noexcept = 0;
  virtual std::string describe() const = 0;
  /// -1 if it is none of CUDA's.
  virtual int cuda_ordinal() const noexcept { return -1; }
  virtual std::shared_ptr<StreamImpl> create_stream(const StreamOptions& options) = 0;
  /// A stream that the caller owns. Throws invalid_argument where there are none.
  virtual std::shared_ptr<StreamImpl> wrap_stream(void* native, const std::string& name) = 0;
  virtual std::shared_ptr<EventImpl> create_event() = 0;
  virtual std::shared_ptr<SignalImpl> create_signal() = 0;
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  /// Memory is filled with NaN before it is given out, so that whoever reads what nobody wrote will show it.
  virtual bool poisons() const noexcept { return false; }
  /// `bytes` of the host's memory, aligned to 256 bytes, that streams of this device copy from and to without holding
  /// up the host: page-locked and mapped on CUDA, where both making and freeing it may wait for all of the GPU's work.
  /// memory_use() does not count it. Throws out_of_memory.
  virtual std::shared_ptr<void> allocate_host(std::size_t bytes) = 0;
  virtual MemoryUse memory_use() const noexcept = 0;
  virtual void synchronize(Deadline deadline) = 0;
};

}  // namespace tandem::detail
