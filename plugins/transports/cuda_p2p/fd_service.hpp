// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/fd.hpp"
#include "tandem/deadline.hpp"

/// How file descriptors get from one process of a host to another: over a Unix socket whose name lives in the network
/// namespace. Descriptors of memory carry no names that could outlive the processes, and nobody but the group gets
/// them.
namespace tandem::cuda_p2p {

using detail::Fd;

using Group = std::array<std::uint8_t, 16>;

/// What a descriptor is of.
struct FdKey {
  enum Kind : std::uint32_t { board = 1, region = 2, probe = 3 };
  std::uint32_t kind = board;
  std::uint64_t number = 0;
  auto operator<=>(const FdKey&) const = default;
};

/// Hands out descriptors of this rank to whoever knows the group, from a thread of its own.
class FdService {
 public:
  /// Throws tandem::Error (transport).
  explicit FdService(const Group& group);
  ~FdService();
  FdService(const FdService&) = delete;
  FdService& operator=(const FdService&) = delete;

  const std::string& name() const noexcept { return name_; }
  /// `fd` stays the caller's and must stay open until withdrawn.
  void offer(const FdKey& key, int fd, std::uint64_t bytes);
  void withdraw(const FdKey& key);

 private:
  struct Offer {
    int fd = -1;
    std::uint64_t bytes = 0;
  };
  void serve();
  void answer(int client);

  const Group group_;
  Fd listener_;
  Fd stop_read_, stop_write_;
  std::string name_;
  std::mutex mutex_;
  std::map<FdKey, Offer> offers_;
  std::thread thread_;
};

/// A descriptor of another rank, and the size of what it is of. Tries again until the deadline while nobody answers or
/// nothing is offered yet; `stop` ends that early. Throws timeout or aborted, saying why it failed last.
std::pair<Fd, std::uint64_t> fetch_fd(const std::string& service, const Group& group, const FdKey& key,
                                      Deadline deadline, const std::function<bool()>& stop);

}  // namespace tandem::cuda_p2p
