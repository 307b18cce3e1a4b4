// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tandem/inputs.hpp"
#include "tandem/job.hpp"
#include "tandem/plan.hpp"

namespace tandem::cli {

/// This rank's inputs, as `tandem dsa` has them, made on all cores and copied to the device. Blocks. `dout` only with
/// `gradient`.
InputRows make_step_inputs(const DsaJob& job, const Plan& plan, const Device& device, bool gradient);

}  // namespace tandem::cli
