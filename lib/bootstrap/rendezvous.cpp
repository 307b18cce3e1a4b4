// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous.hpp"

#include <fmt/format.h>

#include "bootstrap/asio.hpp"
#include "bootstrap/store_server.hpp"

namespace tandem::detail {
namespace {

[[noreturn]] void throw_missing(const char* missing, const char* because) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is not set, but {} is", missing, because));
}

void check_rank(const Env& env, const char* because) {
  if (!env.rank) throw_missing("RANK", because);
  if (!env.world_size) throw_missing("WORLD_SIZE", because);
  if (*env.world_size < 1 || *env.rank < 0 || *env.rank >= *env.world_size) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("RANK is {} and WORLD_SIZE {}: ranks go from 0 to WORLD_SIZE - 1", *env.rank, *env.world_size),
        *env.rank);
  }
}

TcpStoreOptions options_of(const Env& env) {
  TcpStoreOptions options;
  options.rank = *env.rank;
  options.size = *env.world_size;
  return options;
}

Membership join_tandem_store(const Env& env, Deadline deadline) {
  check_rank(env, "TANDEM_STORE");
  TcpStoreOptions options = options_of(env);
  const std::size_t slash = env.store->rfind('/');
  if (slash == std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TANDEM_STORE is '{}', not host:port/token: the token is missing", *env.store));
  }
  options.endpoint = env.store->substr(0, slash);
  try {
    options.token = job_token_from_hex(std::string_view(*env.store).substr(slash + 1));
    return {options.rank, options.size, connect_store(options, deadline)};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    throw Error(e.code(),
                fmt::format("{} (from TANDEM_STORE, RANK {} and WORLD_SIZE {})", e.what(), options.rank, options.size),
                options.rank);
  }
}

// Only a loopback address says for sure that all ranks are here; a name may mean another address on each host.
std::string address_to_bind(const std::string& master_addr) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(master_addr, error);
  return !error && address.is_loopback() ? master_addr : "";
}

std::shared_ptr<StoreServer> serve(const Env& env, const StoreServerOptions& options) {
  try {
    return std::make_shared<AsioStoreServer>(options, *env.rank);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::transport) throw;
    throw Error(ErrorCode::transport,
                fmt::format("{}. Rank 0 serves on MASTER_PORT; torchrun's agent may own that port, or another job. "
                            "Ways out: start with `tandem launch`, which sets TANDEM_STORE, set TANDEM_STORE yourself, "
                            "or give another MASTER_PORT than {}",
                            e.what(), *env.master_port),
                *env.rank);
  }
}

// Says, where nobody answered, which settings of the two ranks may be the reason.
std::shared_ptr<Store> join_rank_0(const TcpStoreOptions& options, Deadline deadline) {
  try {
    return connect_store(options, deadline);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout || options.rank == 0) throw;
    throw Error(e.code(),
                fmt::format("{}. Rank 0 serves there, unless its WORLD_SIZE is 1; ranks of one job have the same "
                            "MASTER_PORT and TORCHELASTIC_RUN_ID",
                            e.what()),
                e.rank());
  }
}

Membership join_master(const Env& env, Deadline deadline) {
  const char* because = env.master_addr   ? "MASTER_ADDR"
                        : env.master_port ? "MASTER_PORT"
                        : env.rank        ? "RANK"
                                          : "WORLD_SIZE";
  check_rank(env, because);
  if (!env.master_addr) throw_missing("MASTER_ADDR", because);
  if (!env.master_port) throw_missing("MASTER_PORT", because);
  if (*env.master_port < 1 || *env.master_port > 65535) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("MASTER_PORT is {}, not a port from 1 to 65535", *env.master_port), *env.rank);
  }
  TcpStoreOptions options = options_of(env);
  if (options.size == 1) return {0, 1, nullptr};
  // Not of the size: a rank that has another one is to be told so, and not dropped as a stranger.
  options.token = job_token_from(fmt::format("{}/{}", *env.master_port, env.run_id.value_or("")));
  options.server_rank = 0;
  std::string host = *env.master_addr;
  if (options.rank == 0) {
    StoreServerOptions server;
    server.address = address_to_bind(host);
    server.port = static_cast<std::uint16_t>(*env.master_port);
    server.token = options.token;
    server.size = options.size;
    options.server = serve(env, server);
    // This host may not be able to resolve or reach its own public name.
    if (server.address.empty()) host = "127.0.0.1";
  }
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  options.endpoint = fmt::format("{}:{}", host, *env.master_port);
  return {options.rank, options.size, join_rank_0(options, deadline)};
}

}  // namespace

Membership rendezvous_from_environment(const Env& env, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  if (env.store) return join_tandem_store(env, deadline);
  if (env.master_addr || env.master_port || env.rank || env.world_size) return join_master(env, deadline);
  return {};
}

}  // namespace tandem::detail
