// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transports/loopback/control.hpp"

namespace tandem::loopback {

/// The gate that holds `delivery` from now on, counted there; null if none does.
std::shared_ptr<GateState> hold_at_gate(const Delivery& delivery);
bool is_released(const GateState& gate);

}  // namespace tandem::loopback
