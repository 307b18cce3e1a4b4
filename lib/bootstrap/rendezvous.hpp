// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "base/env.hpp"
#include "tandem/store.hpp"

namespace tandem::detail {

inline constexpr std::chrono::milliseconds default_rendezvous_timeout{10000};

/// What a process learns of its job before it talks to the others.
struct Membership {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;  ///< null if there are no others
};

/// From TANDEM_STORE, RANK and WORLD_SIZE; else from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, where rank 0
/// serves; else this process is alone. Settings of which a part is missing are an invalid_argument that names it.
/// Beyond that the errors are those of connect_store() and StoreServer::start().
Membership rendezvous_from_environment(const Env& env, std::chrono::milliseconds timeout = default_rendezvous_timeout);

}  // namespace tandem::detail
