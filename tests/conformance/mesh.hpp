// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tandem/deadline.hpp"
#include "tandem/error.hpp"
#include "tandem/plugin/transport.h"

namespace tandem::conformance {

using Options = std::map<std::string, std::string>;

constexpr tandem_status code(ErrorCode c) { return static_cast<tandem_status>(c); }

inline tandem_transfer send_to(int peer, std::uint64_t tag, const void* buffer, std::uint64_t bytes) {
  return {sizeof(tandem_transfer), peer, TANDEM_SEND, const_cast<void*>(buffer), bytes, tag, 0, 0, 0, 0};
}
inline tandem_transfer receive_from(int peer, std::uint64_t tag, void* buffer, std::uint64_t bytes) {
  return {sizeof(tandem_transfer), peer, TANDEM_RECEIVE, buffer, bytes, tag, 0, 0, 0, 0};
}

/// What became of the transfers of one post.
class Batch {
 public:
  explicit Batch(std::size_t count) : outcomes_(count) {}

  static void on_complete(void* batch, std::uint64_t index, tandem_status status, const char* message);
  /// All have completed: true, or false at the deadline.
  bool wait(Deadline deadline = Deadline::after(std::chrono::seconds(20)));
  std::size_t completed() const;
  tandem_status status(std::size_t index) const;
  std::string message(std::size_t index) const;
  /// How often each was completed; 1 is right.
  int times(std::size_t index) const;
  bool all_once_with(tandem_status status) const;
  /// The transfers by their numbers, in the order in which they completed.
  std::vector<std::uint64_t> order() const;

 private:
  struct Outcome {
    int times = 0;
    tandem_status status = TANDEM_IN_PROGRESS;
    std::string message;
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> outcomes_;
  std::size_t completed_ = 0;
  std::vector<std::uint64_t> order_;
};

/// One rank's context and everything its transport told the host. Closes the context, unless close() already did.
class Rank {
 public:
  Rank(const tandem_transport& transport, int rank, int size, const std::array<std::uint8_t, 16>& group,
       const Options& options);
  ~Rank();
  Rank(const Rank&) = delete;

  tandem_status open_status() const { return open_status_; }
  std::vector<char> address() const;
  void connect(const std::vector<std::vector<char>>& addresses);
  tandem_status connect_test(int peer) { return transport_.connect_test(context_, peer); }
  /// The batch lives as long as this object.
  Batch& post(const std::vector<tandem_transfer>& transfers);
  /// Without a batch: for completions that do something.
  void post_raw(const tandem_transfer& transfer, tandem_completion_fn on_complete, void* user);
  tandem_status try_post(const std::vector<tandem_transfer>& transfers);
  void abort(const std::string& reason) { transport_.abort(context_, reason.c_str()); }
  void close();

  std::vector<std::string> logs() const;
  /// Reasons given for each peer reported as failed, one for each call.
  std::multimap<int, std::string> failures() const;
  bool wait_failures(std::size_t count, Deadline deadline = Deadline::after(std::chrono::seconds(10)));

 private:
  const tandem_transport& transport_;
  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> logs_;
  std::multimap<int, std::string> failures_;
  std::vector<std::unique_ptr<Batch>> batches_;
  tandem_host_services services_;
  tandem_status open_status_ = TANDEM_IN_PROGRESS;
  tandem_transport_context* context_ = nullptr;
};

/// A group of ranks in this process, connected to each other. A failure to get there fails the test.
class Mesh {
 public:
  Mesh(const tandem_transport& transport, int size, const Options& options = {});
  ~Mesh();
  Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  bool connected() const { return connected_; }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool connected_ = false;
};

std::array<std::uint8_t, 16> fresh_group();

/// Bytes that depend on every part of a transfer's identity and on their place, so that no mix-up goes unseen.
std::vector<char> pattern(int src, int dst, std::uint64_t tag, std::uint64_t index, std::size_t bytes);
std::vector<char> poisoned(std::size_t bytes);

std::size_t open_fds();
std::size_t threads_of_process();

}  // namespace tandem::conformance
