// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/device.hpp"
#include "tandem/plan.hpp"
#include "tandem/store.hpp"
#include "tandem/tensor.hpp"
#include "tandem/trace.hpp"
#include "tandem/work.hpp"

namespace tandem {

namespace detail {
class CommunicatorImpl;
class ReductionState;
}  // namespace detail

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  Device device = Device::host();
  /// How the ranks find each other; may be empty only if size is 1. Communicator::from_environment fills it.
  std::shared_ptr<Store> store;
  /// A transport's name; or several, as "cuda_p2p,nccl": each pair of ranks then has the first of them by which the two
  /// reach each other, and route() says which and why. "" lets tandem choose: "tcp" for processes on the host device,
  /// what `tandem info --routes` shows for GPUs. What tcp moves between GPUs passes through page-locked memory of the
  /// hosts, as much as the operations under way have bytes, and cannot be captured.
  std::string transport;
  /// Options of the transport, key by key; `tandem info` lists them. An unknown key is an error. With "NAME." in front
  /// a key is for one of several transports.
  std::map<std::string, std::string> transport_options;
  std::chrono::milliseconds rendezvous_timeout{10000};
  /// Most time an operation may take from the moment the stream reaches it.
  std::chrono::milliseconds operation_timeout{60000};
  /// Records spans of every operation; may be null. Must be the recorder of this rank.
  std::shared_ptr<Trace> trace;
};

/// One tensor of a gather or reduction, as prepare() needs to know it.
struct FieldSpec {
  std::string name;
  DType dtype = DType::bf16;
  std::int64_t row_elements = 0;
  /// Reductions only: f32, or bf16 for half the bytes; sums are fp32 either way.
  DType wire = DType::f32;
};

struct BatchSpec {
  std::vector<FieldSpec> gather;
  std::vector<FieldSpec> reduce;
  /// Whatever else must agree across ranks: model shape, numerics version, hyperparameters. Compared as text; a
  /// difference is reported with both values.
  std::string fingerprint;
};

struct GatherField {
  std::string name;
  /// [rows, row...]: this rank's shard. Read from the moment the stream gets here until wait(stream) is passed.
  /// Empty if the field is in place.
  Tensor source;
  /// [landed_rows, row...], or empty to land in the slot that the communicator keeps for it. Give one for rows that
  /// must outlive the next gather but one. If the communicator is one-sided it has to lie in a buffer of its
  /// allocate().
  Tensor destination;
  /// This rank's rows are where they land already, in the slot that the gather will use or in `destination`, at
  /// Plan::to_landed of their positions: nothing but what travels is copied.
  bool in_place = false;
};

struct ReduceField {
  std::string name;
  /// [landed_rows, row...] fp32: this rank's contributions. A chunk's rows may not change after its submit.
  Tensor contributions;
  /// [rows, row...] fp32 or bf16: receives the sum over all ranks of this rank's rows. Rows that nobody contributed to
  /// are set to exactly 0.
  Tensor result;
};

/// One matched send or receive of exchange(). Sends to and receives from a peer match in the order they are given.
struct Transfer {
  enum class Direction { send, receive };
  Direction direction = Direction::send;
  int peer = 0;
  void* data = nullptr;  ///< may be null if bytes is 0
  std::uint64_t bytes = 0;
  /// Of a send, and only looked at if the communicator is one-sided: where it lands, as this rank's own address of the
  /// same place in the same buffer of Communicator::allocate. What such a communicator receives has to lie in one, too.
  void* destination = nullptr;
};

/// What prepare() agreed on. A copy shares it; it keeps its memory alive.
class TANDEM_EXPORT Prepared {
 public:
  struct Data;
  Prepared() = default;
  explicit Prepared(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  bool valid() const noexcept { return data_ != nullptr; }
  /// Two slots alternate, one gather after the other.
  static constexpr int slots = 2;
  /// Landed rows of a gather field in a slot: [landed_rows, row_elements].
  Tensor landed(int slot, const std::string& field) const;
  /// Bytes that this plan keeps in the communicator's memory: landing slots, packing and reduction staging.
  std::uint64_t arena_bytes() const;

 private:
  std::shared_ptr<const Data> data_;
};

/// A reduction under way. One thread at a time.
class TANDEM_EXPORT Reduction {
 public:
  Reduction() = default;
  explicit Reduction(std::shared_ptr<detail::ReductionState> state) : state_(std::move(state)) {}
  /// The contributions of `field` to `chunk` are final once `stream` gets here: they leave for the owner now. Each
  /// chunk that this rank contributes to must be submitted exactly once, in any order. Throws invalid_argument (unknown
  /// field or chunk), invalid_usage (a second time, or after finish), or the operation's error.
  void submit(std::string_view field, ChunkId chunk, const Stream& stream);
  /// The same for every field.
  void submit(ChunkId chunk, const Stream& stream);
  /// `stream` waits for the contributions of the others chunk by chunk, adds them in the plan's order, own rows last,
  /// and writes the results. Throws invalid_usage if a chunk has not been submitted, naming it. Waiting on the returned
  /// Work means: results are written and contributions have been read.
  Work finish(const Stream& stream);
  /// The handle of the operation, also before finish().
  Work work() const;

 private:
  std::shared_ptr<detail::ReductionState> state_;
};

/// One rank's membership in a group.
///
/// One thread at a time issues operations, in the same order on all ranks; abort(), status() and every wait may be
/// called from any thread. Calls that enqueue return at once; calls that block say so and take or imply a deadline,
/// past which they return within a second, naming the ranks they waited for. A rank that dies is named on every
/// survivor. After a failure or abort the communicator takes no more operations, pending waits are released, and
/// results are undefined. Destroying the communicator fails its open Works and frees every thread, socket and byte it
/// holds.
class TANDEM_EXPORT Communicator {
 public:
  /// Collective, blocks. Throws timeout (naming the ranks that did not come), version_mismatch, invalid_argument (also
  /// if the size is not rank 0's; the others get aborted, naming this rank), transport.
  static Communicator create(const CommunicatorOptions& options);
  /// Fills rank, size and store from, in this order: options.store; TANDEM_STORE with RANK and WORLD_SIZE (set by
  /// `tandem launch`); MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, where rank 0 serves. Without any of them: one
  /// rank alone.
  static Communicator from_environment(CommunicatorOptions options = {});

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;
  const Device& device() const noexcept;
  const std::shared_ptr<Trace>& trace() const noexcept;
  /// ok, or why this communicator takes no more operations.
  Status status() const;
  /// The transport used towards `peer`, why it was chosen, and what was rejected and why: "tcp: the first choice, the
  /// default for ranks on the host device".
  std::string route(int peer) const;

  /// Collective, blocks up to the rendezvous timeout; once per batch shape. Compares layout, options, fields and the
  /// fingerprint across ranks (version_mismatch names the first rank that differs, and in what) and sizes the arenas.
  /// Memory of a batch shape is reused by the next ones.
  Prepared prepare(const Plan& plan, const BatchSpec& spec);

  /// Gathers the rows that this rank needs, fields in priority order: all chunks of the first field, then the next.
  /// Lands in the slot of the gather before last: give it a stream that is behind all readers of that one's rows, and
  /// behind all streams that wait for it.
  /// Throws invalid_usage if (plan, fields) were not prepared, invalid_argument if a tensor does not fit, or this
  /// communicator's error. Does not block.
  Work gather(const Plan& plan, std::span<const GatherField> fields, const Stream& stream);
  /// Begins the reverse: contributions over landed rows go to the owners of the rows and are added there. Errors as
  /// gather.
  Reduction reduce(const Plan& plan, std::span<const ReduceField> fields, const Stream& stream);
  /// Matched sends and receives, all under way at once: the n-th send to a peer is its n-th receive from here. A rank
  /// that has none calls it with an empty list. A pair whose sizes differ fails on both sides, on the host device; on a
  /// GPU nobody sees that, and what arrives is undefined.
  Work exchange(std::span<const Transfer> transfers, const Stream& stream);

  /// Device memory that peers may write to: where gathers over a one-sided transport may land, besides their slots.
  /// Collective, blocks up to the rendezvous timeout; `bytes` may differ between ranks. A destination in it has to
  /// begin at the same offset of the same buffer on all ranks. Throws out_of_memory, on all ranks if on one. Buffers of
  /// a one-sided transport keep it open after this communicator is closed, and so does all that shares them (landed
  /// rows, Works, Prepared).
  Buffer allocate(std::size_t bytes);
  /// Operations are enqueued whole, and nothing of them runs on the host: the transport is such a one, or there are no
  /// peers and the device is a GPU.
  bool stream_ordered() const noexcept;
  /// Peers write to this rank's memory by themselves, so that gathers land only in their slots and in buffers of
  /// allocate().
  bool one_sided() const noexcept;

  /// Collective over this communicator: ranks that pass the same `color` form a group, ordered by `key`, then by rank.
  /// A negative color joins none and gets an empty optional. Blocks up to the rendezvous timeout.
  std::optional<Communicator> split(int color, int key);
  /// Blocks until all ranks are here. Throws timeout naming the ranks that are not.
  void barrier(Deadline deadline);
  /// Collective: finishes what is in flight, says good-bye, closes. Later operations are invalid_usage. Graphs that
  /// operations were captured in must have run to their end by now, on all ranks, and be launched no more.
  void finalize(Deadline deadline);
  /// Ends everything now, here and on all other ranks, which report `aborted` and this rank. Never blocks on a peer.
  void abort(const std::string& reason) noexcept;

  /// This rank's clock plus this is rank 0's: nanoseconds, estimated when the communicator was made.
  std::int64_t clock_offset_ns() const noexcept;

 private:
  explicit Communicator(std::shared_ptr<detail::CommunicatorImpl> impl);
  std::shared_ptr<detail::CommunicatorImpl> impl_;
};

}  // namespace tandem
