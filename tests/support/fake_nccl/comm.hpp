// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/fake_nccl/meeting.hpp"

namespace tandem::fake_nccl {

/// One send or receive of a group.
struct Message {
  ncclComm_t comm = nullptr;
  bool sends = false;
  char* memory = nullptr;
  std::size_t bytes = 0;
  ncclDataType_t type = ncclUint8;
  int peer = 0;
  cudaStream_t stream = nullptr;
};

/// A number from the environment.
long setting(const char* name, long otherwise);

}  // namespace tandem::fake_nccl

/// nccl.h leaves it to whoever implements it.
struct ncclComm {
 public:
  /// Throws std::exception if CUDA or the system fails.
  ncclComm(const std::string& name, int size, int rank);

  /// Puts a group on its stream, where it stays until all its messages are through. All on one stream.
  ncclResult_t launch(std::span<const tandem::fake_nccl::Message> messages);
  /// Counts down what is to take a while.
  ncclResult_t state();
  ncclResult_t finalize();
  /// Ends what runs and what will: for good, whatever becomes of this object.
  void release();
  /// False if something still runs after some seconds.
  bool drain() const;
  void free();

 private:
  using Clock = std::chrono::steady_clock;
  /// The streams to and from a peer, as messages of a group move on together.
  struct Line {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  struct Piece {
    char* memory;
    std::size_t bytes;
  };
  void send(int peer, const Piece& piece);
  void receive(int peer, const Piece& piece);
  Line make_line() const;
  ncclResult_t fail(ncclResult_t error, const char* text);

  const int size_, rank_;
  const std::shared_ptr<tandem::fake_nccl::Meeting> meeting_;
  std::vector<Line> out_, in_;
  cudaEvent_t begun_ = nullptr;
  std::atomic<bool> released_{false};
  bool met_ = false;
  bool finalizing_ = false;
  long groups_ = 0;
  bool hangs_ = false;
  Clock::time_point hangs_since_;
  int asks_left_ = 0;
  ncclResult_t error_ = ncclSuccess;
};
