// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/deadline.hpp"
#include "tandem/error.hpp"

namespace tandem {

/// A small key-value store that the ranks of a job share: how they find each other, compare settings, and hear of
/// deaths. Every call may be made from any thread. A key is set once by convention; setting it again overwrites.
class TANDEM_EXPORT Store {
 public:
  virtual ~Store() = default;

  /// Throws timeout, peer_failed (the server is gone), aborted (close() was called).
  virtual void set(std::string_view key, std::string_view value, Deadline deadline) = 0;
  /// Blocks until the key is set. On timeout the error names the key.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  /// Does not wait for the key.
  virtual std::optional<std::string> try_get(std::string_view key, Deadline deadline) = 0;
  /// Adds to a counter that starts at 0 and returns the new value. get reads a counter as decimal text; adding to a key
  /// that holds other text is an invalid_argument.
  virtual std::int64_t add(std::string_view key, std::int64_t amount, Deadline deadline) = 0;
  /// Removes a key; no error if it is not there.
  virtual void erase(std::string_view key, Deadline deadline) = 0;

  /// Something every other rank should know at once.
  struct Notice {
    enum class Kind : std::uint8_t {
      peer_lost,  ///< the store lost `rank`: end of file or missed heartbeats
      aborted,    ///< `rank` called abort
      left,       ///< `rank` said good-bye in order
    };
    Kind kind = Kind::peer_lost;
    int rank = -1;  ///< rank in the job
    std::string reason;
  };
  using Listener = std::function<void(const Notice&)>;
  /// Calls `listener` on a thread of the store for each notice, those that came before this call included. The returned
  /// handle's destruction ends it and returns only when no call is running. The listener must not block, and must not
  /// destroy the handle; of the store's calls it may use announce and close.
  virtual std::shared_ptr<void> listen(Listener listener) = 0;
  /// Tells all others. Never blocks, never throws.
  virtual void announce(const Notice& notice) noexcept = 0;

  /// Says good-bye: from now on this rank's end of file is no failure. Where the store serves others it waits until
  /// they have left too, or for the deadline. Later calls throw invalid_usage. A store that is destroyed or closed
  /// without having left is lost for the others.
  virtual void leave(Deadline deadline) = 0;
  /// Makes every pending and later call throw aborted. Never blocks.
  virtual void close() noexcept = 0;
};

/// A store for ranks that are threads of one process. Make one, call attach(rank) for each rank.
class TANDEM_EXPORT HashStore : public std::enable_shared_from_this<HashStore> {
 public:
  static std::shared_ptr<HashStore> create(int size);
  /// The store as `rank` sees it. Throws invalid_argument if the rank is out of range, invalid_usage if it is attached.
  std::shared_ptr<Store> attach(int rank);

  struct State;
  explicit HashStore(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// A view of `store` in which every key starts with `prefix`; notices pass through.
TANDEM_EXPORT std::shared_ptr<Store> prefix_store(std::shared_ptr<Store> store, std::string prefix);

/// Tells the jobs of a host apart: a connection that does not know it is dropped.
using JobToken = std::array<std::uint8_t, 16>;
TANDEM_EXPORT JobToken random_job_token();
/// The first 128 bits of a hash of `text`: identification, not a secret.
TANDEM_EXPORT JobToken job_token_from(std::string_view text);
TANDEM_EXPORT std::string to_hex(const JobToken& token);
/// Throws invalid_argument unless `hex` is 32 hexadecimal digits.
TANDEM_EXPORT JobToken job_token_from_hex(std::string_view hex);

struct StoreServerOptions {
  /// Interface address to bind; "" binds all of IPv6 and IPv4, "127.0.0.1" or "::1" only loopback.
  std::string address;
  /// 0 lets the system choose; see StoreServer::port().
  std::uint16_t port = 0;
  JobToken token{};
  int size = 1;
  /// A rank that is silent for this long is lost. Clients send a heartbeat every fifth of it.
  std::chrono::milliseconds heartbeat_timeout{5000};
};

/// Serves a TcpStore. One thread of its own. A connection whose hello is garbled, late (1 s) or of another token is
/// dropped and counted; it harms nobody. One of another size is refused, and its rank lost if it is not here in 1 s.
class TANDEM_EXPORT StoreServer {
 public:
  /// Throws transport (cannot bind: says address, port and the system's reason), invalid_argument.
  static std::shared_ptr<StoreServer> start(const StoreServerOptions& options);
  virtual ~StoreServer() = default;
  virtual std::uint16_t port() const noexcept = 0;
  virtual std::uint64_t dropped_hellos() const noexcept = 0;
  /// True when every rank that joined has said good-bye or is lost, and all have joined. Blocks up to the deadline.
  virtual bool wait_all_left(Deadline deadline) = 0;
  /// Ranks that never joined, for messages.
  virtual std::vector<int> missing_ranks() const = 0;
  virtual void stop() noexcept = 0;
};

struct TcpStoreOptions {
  /// "host:port", "[v6]:port"; all addresses of a name are tried.
  std::string endpoint;
  JobToken token{};
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds heartbeat_timeout{5000};
  /// If set, this process serves: leave() waits for the others.
  std::shared_ptr<StoreServer> server;
  /// The rank whose process serves, if one does: if the server is lost, the notice and the errors name this rank.
  int server_rank = -1;
};

/// Connects, retrying until the deadline. Throws timeout (what was tried and the last reason), invalid_argument (the
/// rank is taken, out of range, or the size differs from the server's), version_mismatch.
TANDEM_EXPORT std::shared_ptr<Store> connect_store(const TcpStoreOptions& options, Deadline deadline);

}  // namespace tandem
