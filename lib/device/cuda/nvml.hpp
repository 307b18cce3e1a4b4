// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/topology.hpp"

namespace tandem::detail::cuda {

/// NVML, the driver's management library, found at run time: it alone tells how GPUs are linked. One object at a time
/// loads and starts it; it goes with the object.
class Nvml {
 public:
  /// Never throws for want of NVML: missing() says why then, and the other calls answer nothing.
  explicit Nvml(const char* library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Empty if NVML answers.
  const std::string& missing() const noexcept { return missing_; }
  std::string driver_release() const;
  NvLinks links(const PciAddress& gpu) const;
  PciPath path(const PciAddress& a, const PciAddress& b) const;
  /// False if NVLinks between the two are there but cannot be used, as when a fabric is partitioned; nothing if NVML
  /// cannot tell.
  std::optional<bool> nvlink_usable(const PciAddress& a, const PciAddress& b) const;

 private:
  struct Functions;
  std::string load(const char* library);

  std::unique_ptr<Functions> functions_;
  std::string missing_;
};

}  // namespace tandem::detail::cuda
