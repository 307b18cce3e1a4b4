// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/endpoint.hpp"
#include "comm/meeting.hpp"
#include "comm/op.hpp"
#include "comm/prepared.hpp"
#include "tandem/communicator.hpp"

namespace tandem::detail {

class ReductionState;

/// Who the ranks of a group are: group rank -> rank in the job, which is how the store's notices name them.
struct Group {
  std::string name;  ///< prefix of the group's keys in the store
  int rank = 0;
  std::vector<int> job_ranks;
  int size() const { return static_cast<int>(job_ranks.size()); }
};

/// One rank's side of a group. Three kinds of threads come here: the issuing thread, streams and transport threads that
/// report completions, and the watchdog. `mutex_` guards the status and the list of operations and is never held while
/// an operation, the endpoint or the store is called.
class CommunicatorImpl : public std::enable_shared_from_this<CommunicatorImpl> {
 public:
  CommunicatorImpl(CommunicatorOptions options, Group group, std::shared_ptr<Store> job_store,
                   std::string route_reason);
  ~CommunicatorImpl();

  /// Meets the others and connects. Collective. If it fails the others hear why.
  void join();

  Prepared prepare(const Plan& plan, const BatchSpec& spec);
  Work gather(const Plan& plan, std::span<const GatherField> fields, const Stream& stream);
  Reduction reduce(const Plan& plan, std::span<const ReduceField> fields, const Stream& stream);
  Work exchange(std::span<const Transfer> transfers, const Stream& stream);
  Buffer allocate(std::size_t bytes);
  std::shared_ptr<CommunicatorImpl> split(int color, int key);
  void barrier(Deadline deadline);
  void finalize(Deadline deadline);
  void abort(const std::string& reason) noexcept;
  /// Fails what is open, ends threads and sockets. Idempotent.
  void close() noexcept;

  const CommunicatorOptions& options() const noexcept { return options_; }
  int rank() const noexcept { return group_.rank; }
  int size() const noexcept { return group_.size(); }
  Status status() const;
  std::string route(int peer) const;
  /// The transports that are used: "cuda_p2p, nccl".
  std::string transports() const;
  std::int64_t clock_offset_ns() const noexcept { return clock_offset_ns_; }

  /// Ends the communicator with `status`: open operations fail, waiters are released. The first call counts.
  void fail(Status status, bool announce) noexcept;
  /// Posts transfers of an operation's items: transfer i belongs to items[i]. Failures become the operation's.
  void post(const std::shared_ptr<OpState>& op, std::span<const WireTransfer> transfers,
            std::vector<std::size_t> items);
  /// Calls `f` with the endpoint, which stays open meanwhile; false if there is none any more.
  template <class F>
  bool with_endpoint(F&& f) {
    const std::shared_lock lock(endpoint_mutex_);
    if (!endpoint_) return false;
    f(*endpoint_);
    return true;
  }
  /// Runs `enqueue`, which gives streams the parts of an operation. If it fails halfway, the communicator fails: peers
  /// would wait for the rest.
  template <class F>
  void issue(F&& enqueue) {
    try {
      enqueue();
    } catch (const Error& e) {
      status().throw_if_failed();
      fail({e.code(), e.what(), e.rank(), e.op()}, true);
      throw;
    }
  }

  /// What a stream has to do, behind a wait, to what came from `peer`: empty if it is in place then.
  StreamOp::Place placing(int peer) const;

  /// Memory of allocate() that peers can write to.
  struct SharedMemory {
    std::weak_ptr<void> alive;
    const std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::uint64_t region = 0;
  };
  /// Null if [data, data + bytes) lies in none.
  const SharedMemory* find_shared(const void* data, std::size_t bytes) const;
  /// Memory of the communicator's own for the dense copy of a gather field's rows; grows, but what it was is kept,
  /// since freeing memory of a GPU may wait for all of its work.
  void* dense_memory(std::size_t slot, std::size_t field, std::size_t bytes);
  /// Operations are stream-ordered: the transport is, or there are no peers and the device is a GPU.
  bool streamed() const noexcept { return streamed_; }
  /// Peers write to this rank's memory by themselves.
  bool one_sided() const noexcept { return one_sided_; }

 private:
  Work gather_by_host(const std::shared_ptr<const Prepared::Data>& prepared, std::span<const GatherField> fields,
                      const Stream& stream);
  Work gather_on_stream(const std::shared_ptr<const Prepared::Data>& prepared, std::span<const GatherField> fields,
                        const Stream& stream);
  Work exchange_by_host(std::span<const Transfer> transfers, const Stream& stream);
  /// Where `wire` lands, at this rank or at the peer. Throws invalid_argument if it cannot land there.
  void find_place(const Transfer& transfer, std::size_t index, WireTransfer& wire) const;
  Work exchange_on_stream(std::span<const Transfer> transfers, const Stream& stream);
  /// Exchanges where things lie in the ranks' arenas. Those that peers write to are grown together if any rank's is too
  /// small.
  void share_arenas(Prepared::Data& data);
  void reserve_lanes(const Prepared::Data& data);
  /// Collective: memory of the transport that all peers can write to.
  Region share_region(std::size_t bytes, Deadline deadline);
  void establish();
  void connect_routes(const GroupId& group, Deadline deadline);
  void check_usable() const;
  std::shared_ptr<OpState> make_op(OpKind kind, std::vector<std::string> fields);
  std::shared_ptr<StreamOp> make_stream_op(std::uint32_t lane, const Stream& home);
  /// Arrival flags of one lane, from one peer.
  std::uint32_t flags_of_a_lane() const;
  void open_op(const std::shared_ptr<OpState>& op);
  std::shared_ptr<const Prepared::Data> find_prepared(const Plan& plan) const;
  /// Throws version_mismatch on every rank if the ranks' facts differ; names the first that does, and in what.
  void agree(const std::string& name, const std::vector<std::pair<std::string, std::string>>& facts, Deadline deadline);
  /// Throws `error` once all ranks, which found the same, had the time to see it too.
  [[noreturn]] void disagree(const Error& error, Deadline deadline);
  /// Runs a meeting; if this communicator failed meanwhile, its error is the one that is thrown.
  template <class F>
  auto meet(F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::timeout) await_verdict();  // a broken store connection: whose death is it?
      status().throw_if_failed();
      throw;
    }
  }
  void await_verdict();
  void on_notice(const Store::Notice& notice);
  void on_transfer_error(const Status& status);
  /// For threads that must not call back into the transport or the store: the watchdog calls fail().
  void report(Status status, bool announce);
  void suspect(int peer, const std::string& reason);
  void watch();
  void watch_ops(const std::vector<std::shared_ptr<OpState>>& ops,
                 std::map<std::int64_t, std::chrono::nanoseconds>& next_notice);
  int group_rank_of(int job_rank) const;

  CommunicatorOptions options_;
  const Group group_;
  bool streamed_ = false;
  bool one_sided_ = false;
  std::shared_ptr<Store> job_store_;
  std::shared_ptr<Store> store_;  // a view that this communicator can close alone
  std::shared_ptr<void> listening_;
  std::optional<Meeting> meeting_;
  std::shared_mutex endpoint_mutex_;    // exclusive to close the endpoint, shared to use it
  std::shared_ptr<Endpoint> endpoint_;  // shared by its regions
  const std::string route_reason_;
  struct RouteName {
    std::string transport, reason;
  };
  std::vector<RouteName> routes_;  // by rank
  std::int64_t clock_offset_ns_ = 0;

  // The issuing thread's own.
  std::int64_t next_sequence_ = 0;
  std::int64_t next_meeting_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const Prepared::Data>> prepared_;
  std::array<Region, Prepared::slots> gather_arena_;
  std::array<Region, Prepared::slots> reduce_arena_;
  std::vector<SharedMemory> shared_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Buffer>> dense_;  // by slot and field
  struct Slot {
    std::shared_ptr<OpState> last;  // the operation that used it
    std::shared_ptr<ReductionState> reduction;
  };
  std::array<Slot, Prepared::slots> gather_last_;
  std::array<Slot, Prepared::slots> reduce_last_;
  std::array<std::shared_ptr<OpState>, StreamLayout::exchange_lanes> exchange_last_;
  std::int64_t gathers_ = 0;
  std::int64_t reductions_ = 0;
  std::int64_t exchanges_ = 0;
  bool finalized_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Status status_;
  std::vector<std::shared_ptr<OpState>> open_ops_;
  struct Suspicion {
    int peer = -1;
    std::string reason;
    Deadline::Clock::time_point since;
  };
  std::optional<Suspicion> suspicion_;
  struct Report {
    Status status;
    bool announce = false;
  };
  std::optional<Report> report_;  // a failure that a transport or store thread found; the watchdog acts on it
  std::vector<bool> left_;        // group ranks that said good-bye
  bool closing_ = false;
  bool look_closely_ = false;       // a stream-ordered operation was issued
  std::atomic<bool> quiet_{false};  // finalize under way: ends of connections mean nothing
  std::thread watchdog_;
};

/// What to add to `rank`'s steady clock to get that of rank 0; called by both at once, `other` being the other of the
/// two.
std::int64_t clock_offset(Endpoint& endpoint, int rank, int other, Deadline deadline);

/// Checks that `tensor` is [rows, row_elements...] of a dtype with dense rows; `what` names it in the error.
void check_rows(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t row_elements,
                const std::string& what);

/// Checks that nothing lies between the rows of `tensor`.
void check_adjacent_rows(const Tensor& tensor, const std::string& what);

}  // namespace tandem::detail
