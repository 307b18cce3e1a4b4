// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "device/topology.hpp"
#include "tandem/plugin/transport.h"

namespace tandem::cli {

/// How the GPUs are linked, in the form of `nvidia-smi topo -m`, with a legend of what occurs. "" without GPUs.
std::string link_matrix(const detail::Topology& topology);

/// Everything, with versions, what each GPU can do, and which pairs lack something. If there are no GPUs it says why.
std::string gpu_text(const detail::Topology& topology);
nlohmann::json gpu_json(const detail::Topology& topology);

/// What a transport of this build needs and this machine does not have; "" if it can be used here.
std::string why_unusable(const tandem_transport& transport, const detail::Topology& topology);

}  // namespace tandem::cli
