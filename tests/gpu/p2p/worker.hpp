// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cuda/check.hpp"
#include "tandem/device.hpp"
#include "tandem/plugin/transport.h"

namespace tandem::testing_p2p {

struct Arguments {
  int rank = 0;
  int size = 0;
  std::filesystem::path meeting_point;  // a directory that all ranks share, empty at first
  std::string scenario;
  std::map<std::string, long> numbers;

  long number(const std::string& key, long otherwise) const {
    const auto it = numbers.find(key);
    return it == numbers.end() ? otherwise : it->second;
  }
};

/// One rank over cuda_p2p: two lanes, each with a region in which every peer has `chunks` chunks of `words` words. An
/// operation n (lane n mod 2) moves this rank's chunks to all peers; what it moves depends on rank, chunk and n.
class Worker {
 public:
  Worker(const Arguments& arguments, int chunks, std::size_t words);
  ~Worker();
  Worker(const Worker&) = delete;

  /// New sources, receives, sends.
  void issue();
  /// Waits for each chunk of the next operation that was issued, and checks it.
  void consume();
  void wait_sent();

  cudaStream_t stream() const { return stream_; }
  /// False if the stream is not done in time.
  bool drain(std::chrono::milliseconds patience) const;
  void abort() const { transport_.abort(context_, "the test says so"); }
  /// Throws unless all words of all operations so far were right.
  void expect_all_right() const;
  /// All ranks are here. By files: nothing of the library under test.
  void meet();

 private:
  std::vector<std::string> collect(const std::string& blob);
  void connect();
  std::uint32_t* landed(int lane, int peer, int chunk) const;
  std::uint32_t seed(int rank, int chunk) const { return static_cast<std::uint32_t>(rank * 1000 + chunk * 7); }

  const Arguments arguments_;
  const int chunks_;
  const std::size_t words_;
  const tandem_transport& transport_;
  tandem_host_services services_{};
  tandem_transport_context* context_ = nullptr;
  Device device_;
  Buffer sources_, numbers_;
  void* regions_[2] = {};
  std::uint64_t region_ids_[2] = {};
  cudaStream_t stream_ = nullptr;
  std::uint32_t* issued_step_ = nullptr;
  std::uint32_t* consumed_step_ = nullptr;
  unsigned long long* wrong_ = nullptr;
  long issued_ = 0, consumed_ = 0;
  int meetings_ = 0;
};

/// Returns the exit status of the process.
int run_scenario(const Arguments& arguments);

}  // namespace tandem::testing_p2p
