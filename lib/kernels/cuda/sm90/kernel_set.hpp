// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tandem/kernels.hpp"

namespace tandem::detail::cuda::sm90 {

/// Why the set cannot run on `device`, a GPU; "" if it can.
std::string why_not(const Device& device);
/// The set cuda.sm90; the device can run it.
std::shared_ptr<KernelSet> make_kernels(const Device& device, bool deterministic);

}  // namespace tandem::detail::cuda::sm90
