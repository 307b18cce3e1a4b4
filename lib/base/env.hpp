// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tandem {

/// The one place that reads environment variables. `tandem info` prints table(). Read anew at each read(), so that
/// tests may change it; the library never writes to the environment.
struct Env {
  std::optional<std::string> log;        ///< TANDEM_LOG
  std::optional<int> threads;            ///< TANDEM_THREADS
  std::optional<std::string> store;      ///< TANDEM_STORE: "<host>:<port>/<token in hex>"
  std::optional<std::string> interface;  ///< TANDEM_INTERFACE: address or interface name that tcp binds and advertises
  std::optional<std::string> transport;  ///< TANDEM_TRANSPORT
  std::optional<std::string> nccl_library;  ///< TANDEM_NCCL_LIBRARY
  std::optional<int> rank;                  ///< RANK
  std::optional<int> world_size;            ///< WORLD_SIZE
  std::optional<int> local_world_size;      ///< LOCAL_WORLD_SIZE
  std::optional<std::string> master_addr;   ///< MASTER_ADDR
  std::optional<int> master_port;           ///< MASTER_PORT
  std::optional<std::string> run_id;        ///< TORCHELASTIC_RUN_ID

  /// Throws invalid_argument naming the variable if a number is not one.
  static Env read();
  /// TANDEM_LOG alone: logging must work when another variable is wrong.
  static std::optional<std::string> read_log();

  struct Row {
    std::string name, value, meaning;  // value: as set, or "" if unset
  };
  static std::vector<Row> table();
};

}  // namespace tandem
