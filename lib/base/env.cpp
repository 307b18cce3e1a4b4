// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "tandem/error.hpp"

namespace tandem {
namespace {

struct Variable {
  const char* name;
  const char* meaning;
};

constexpr Variable log_variable{"TANDEM_LOG", "what is logged on stderr: error, warn (default), info or debug"};
constexpr Variable threads_variable{"TANDEM_THREADS",
                                    "threads the cpu kernels use in a rank (default: cores / local ranks)"};
constexpr Variable store_variable{"TANDEM_STORE", "where ranks meet: <host>:<port>/<token>; set by tandem launch"};
constexpr Variable interface_variable{"TANDEM_INTERFACE", "address or interface name that tcp binds and advertises"};
constexpr Variable transport_variable{"TANDEM_TRANSPORT",
                                      "the transport to use, or several as cuda_p2p,nccl; tandem info lists them"};
constexpr Variable nccl_library_variable{"TANDEM_NCCL_LIBRARY", "the NCCL to load (default: libnccl.so.2)"};
constexpr Variable rank_variable{"RANK", "this process's rank; set by tandem launch or torchrun"};
constexpr Variable world_size_variable{"WORLD_SIZE", "number of ranks; set by tandem launch or torchrun"};
constexpr Variable local_world_size_variable{"LOCAL_WORLD_SIZE", "number of ranks on this host"};
constexpr Variable master_addr_variable{"MASTER_ADDR", "host of rank 0, where ranks meet without TANDEM_STORE"};
constexpr Variable master_port_variable{"MASTER_PORT", "port that rank 0 binds on MASTER_ADDR"};
constexpr Variable run_id_variable{"TORCHELASTIC_RUN_ID", "tells jobs apart that share a MASTER_PORT; set by torchrun"};

constexpr const Variable* all_variables[] = {
    &log_variable,          &threads_variable, &store_variable,      &interface_variable,        &transport_variable,
    &nccl_library_variable, &rank_variable,    &world_size_variable, &local_world_size_variable, &master_addr_variable,
    &master_port_variable,  &run_id_variable,
};

// A variable set to nothing counts as unset: that is how scripts switch one off.
std::optional<std::string> text_of(const Variable& variable) {
  const char* value = std::getenv(variable.name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> number_of(const Variable& variable, int min, int max = std::numeric_limits<int>::max()) {
  const std::optional<std::string> text = text_of(variable);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error == std::errc{} && stop == end && value >= min && value <= max) return value;
  const std::string range = max == std::numeric_limits<int>::max()
                                ? "a whole number from " + std::to_string(min) + " on"
                                : "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  throw Error(ErrorCode::invalid_argument, std::string(variable.name) + " is '" + *text + "', which is not " + range);
}

}  // namespace

std::optional<std::string> Env::read_log() { return text_of(log_variable); }

Env Env::read() {
  Env env;
  env.log = read_log();
  env.threads = number_of(threads_variable, 1);
  env.store = text_of(store_variable);
  env.interface = text_of(interface_variable);
  env.transport = text_of(transport_variable);
  env.nccl_library = text_of(nccl_library_variable);
  env.rank = number_of(rank_variable, 0);
  env.world_size = number_of(world_size_variable, 1);
  env.local_world_size = number_of(local_world_size_variable, 1);
  env.master_addr = text_of(master_addr_variable);
  env.master_port = number_of(master_port_variable, 0, 65535);
  env.run_id = text_of(run_id_variable);
  return env;
}

std::vector<Env::Row> Env::table() {
  std::vector<Row> rows;
  for (const Variable* variable : all_variables) {
    rows.push_back({variable->name, text_of(*variable).value_or(""), variable->meaning});
  }
  return rows;
}

}  // namespace tandem
