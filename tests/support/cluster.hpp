// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tandem/communicator.hpp"

namespace tandem::testing {

struct ClusterOptions {
  int ranks = 2;
  std::string transport = "loopback";
  std::map<std::string, std::string> transport_options;
  /// Of one rank, besides those.
  std::function<std::map<std::string, std::string>(int rank)> options_of_rank = {};
  int queues = 0;  ///< of each rank's host device
  std::chrono::milliseconds operation_timeout{20000};
  std::chrono::milliseconds rendezvous_timeout{20000};
  bool trace = false;
  bool finalize = true;  ///< after the body
  bool poison = true;    ///< memory of each rank's device is NaN until it is written
};

/// Plays every rank as a thread of this process: makes a communicator over a HashStore, runs `body`, finalizes. Returns
/// what each rank threw, null where it threw nothing.
std::vector<std::exception_ptr> run_ranks(const ClusterOptions& options,
                                          const std::function<void(Communicator&)>& body);

/// The same; any exception is a failure of the test.
void run_cluster(const ClusterOptions& options, const std::function<void(Communicator&)>& body);

/// What paths and routes call `transport`, which may be one of those that are staged ("staged:tcp").
std::string path_of(const std::string& transport);
/// Its name as part of a test's.
std::string test_name_of(const std::string& transport);

/// The Error in `e`; a failure of the test, and an Error with code ok, if it holds another thing or nothing.
Error error_of(const std::exception_ptr& e);

/// For waits of tests: long enough for a loaded machine.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

}  // namespace tandem::testing
