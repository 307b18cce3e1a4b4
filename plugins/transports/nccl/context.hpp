// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda/context.hpp"
#include "device/cuda/event.hpp"
#include "transports/common/plugin.hpp"
#include "transports/nccl/address.hpp"
#include "transports/nccl/communicator.hpp"
#include "transports/nccl/flag_words.hpp"
#include "transports/nccl/rounds.hpp"

namespace tandem::nccl {

struct Membership {
  int rank = 0;
  int size = 0;
  int device = 0;
  bool may_share_gpus = false;
};

/// One rank of one group. What is posted waits for flush(), which starts it, a group of NCCL's for each round, on a
/// stream of this transport. Every call that enqueues is made by one thread at a time; arrived(), sent() and abort() by
/// any.
class Context {
 public:
  using Stream = cudaStream_t;

  /// Throws tandem::Error.
  Context(const Membership& self, const plugin::Host& host, const Library& library);
  ~Context();

  const plugin::Host& host() const { return host_; }
  int rank() const { return self_.rank; }
  int size() const { return self_.size; }
  std::string address() const { return address_.encode(); }
  /// The communicator is made by a thread. It is that of all ranks: NCCL brings together all of them or nobody.
  void connect(const std::vector<std::string_view>& addresses);
  tandem_status connect_test(int) const { return status_.load(std::memory_order_acquire); }
  std::string connect_error(int) const;

  void post(std::span<const tandem_transfer> transfers, cudaStream_t stream, const plugin::LaneUse& use);
  void flush(cudaStream_t stream, std::uint32_t lane);
  void wait(cudaStream_t stream, int peer, std::uint32_t flag) const;
  void wait_sent(cudaStream_t stream) const;
  bool arrived(int peer, std::uint32_t flag) const;
  bool sent(int peer, std::uint32_t lane) const;
  void abort(const std::string& reason);

 private:
  using PeerFlag = std::pair<int, std::uint32_t>;
  /// An event, and the capture that it was recorded in; 0 is none.
  struct Mark {
    detail::cuda::PooledEvent event;
    unsigned long long capture = 0;
  };
  /// What is posted of a lane's operation.
  struct Lane {
    bool begun = false;
    std::vector<tandem_transfer> transfers;
    std::vector<detail::cuda::PooledEvent> posted;
  };

  void make_communicator(const std::string& unique_id);
  void lose(ErrorCode code, const std::string& why);
  void exchange_first_bytes();
  void watch();
  void report(ncclResult_t error);
  int suspect() const;
  void begin(std::span<const tandem_transfer> transfers, cudaStream_t stream, std::uint32_t lane);
  detail::cuda::PooledEvent record(cudaStream_t stream) const;
  bool in_order(const Mark& mark, cudaStream_t stream) const;
  void start(std::span<const Round> rounds, const std::set<int>& receivers, std::uint32_t lane);
  void keep_released();
  void abort_communicator();
  bool close_communicator();
  bool idle() const;

  const Membership self_;
  const plugin::Host host_;
  const Library& library_;
  const detail::cuda::Context cuda_;
  const Address address_;
  FlagWords words_;
  const std::shared_ptr<detail::cuda::EventPool> events_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  cudaStream_t stream_ = nullptr;
  void* first_bytes_ = nullptr;
  std::array<Lane, FlagWords::lanes> lanes_;

  std::atomic<tandem_status> status_{TANDEM_IN_PROGRESS};
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool closing_ = false;
  std::string connect_error_;
  std::set<PeerFlag> awaited_;  // flags of receives of operations that have begun
  // Of operations that were captured: where in the graph a flag is raised.
  std::map<PeerFlag, std::shared_ptr<const Mark>> marks_;
  std::shared_ptr<const Mark> sent_mark_;
  std::thread watcher_, releaser_;
  std::thread aborter_;
  std::future<void> communicator_aborted_;
};

}  // namespace tandem::nccl
