// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tandem/kernels.hpp"

namespace tandem::cli {

/// What --kernels names: a kernel set, or "cuda" for the best that a GPU has, which is the default there. Throws
/// UsageError.
std::string choose_kernels(const std::optional<std::string>& given, DeviceKind device);

/// `threads`: of kernels on the host, 0 for their default.
std::shared_ptr<KernelSet> make_kernels(const std::string& name, const Device& device, int threads, bool deterministic);

}  // namespace tandem::cli
