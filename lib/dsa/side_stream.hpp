// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "tandem/device.hpp"

namespace tandem::detail {

/// A second stream of a GPU, for work that may run beside that of a first one.
class SideStream {
 public:
  SideStream() = default;
  explicit SideStream(const Device& device)
      : stream_(device.create_stream({.name = "side"})),
        forked_(device.create_event()),
        joined_(device.create_event()) {}
  bool valid() const noexcept { return stream_.valid(); }

  /// While one lives, work given to stream() follows what `main` had before; what `main` gets after join() follows it.
  class Fork {
   public:
    Fork(const SideStream& side, const Stream& main) : side_(side), main_(main) {
      main.record(side.forked_);
      side.stream_.wait(side.forked_);
    }
    /// Whatever has been given to the side stream refers to memory that `main` frees in its order, and a capture of
    /// `main` cannot end without it.
    ~Fork() {
      try {
        join();
      } catch (const std::exception&) {
        // The device has failed, which later calls report.
      }
    }
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;

    const Stream& stream() const noexcept { return side_.stream_; }
    void join() {
      if (joined_) return;
      joined_ = true;
      side_.stream_.record(side_.joined_);
      main_.wait(side_.joined_);
    }

   private:
    const SideStream& side_;
    Stream main_;
    bool joined_ = false;
  };

 private:
  Stream stream_;
  Event forked_, joined_;
};

}  // namespace tandem::detail
