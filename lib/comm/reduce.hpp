// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/op.hpp"
#include "comm/prepared.hpp"
#include "comm/tag.hpp"

namespace tandem::detail {

class CommunicatorImpl;

/// What Reduction is a handle of: which contributions come and go, and that each is submitted once. How they travel is
/// for the two kinds of transport to say.
class ReductionState : public std::enable_shared_from_this<ReductionState> {
 public:
  ReductionState(std::shared_ptr<OpState> op, std::shared_ptr<const Prepared::Data> prepared,
                 std::vector<ReduceField> fields, Buffer staging);
  virtual ~ReductionState() = default;
  ReductionState(const ReductionState&) = delete;
  ReductionState& operator=(const ReductionState&) = delete;

  /// `previous` used the same staging; may be null.
  virtual void begin(const Stream& stream, const std::shared_ptr<OpState>& previous) = 0;
  void submit(std::string_view field, ChunkId chunk, const Stream& stream);
  void submit(ChunkId chunk, const Stream& stream);
  void finish(const Stream& stream);
  bool finished() const noexcept { return finished_; }
  const std::shared_ptr<OpState>& op() const noexcept { return op_; }

 protected:
  /// The contribution of `field` to the chunk of `arrival`, another rank's, is final on `stream`.
  virtual void send(std::size_t field, std::size_t arrival, const Stream& stream) = 0;
  virtual void own_is_final(const Stream& /*stream*/) {}
  virtual void add_all(const Stream& stream) = 0;

  const Plan& plan() const { return prepared_->plan; }
  const FieldSpec& spec(std::size_t field) const { return prepared_->spec.reduce[spec_index_[field]]; }
  Tag tag(std::size_t field, ChunkId chunk) const;
  const float* contribution_row(std::size_t field, std::int64_t landed_row) const;
  std::byte* receive_staging(std::size_t field, std::size_t departure) const;
  /// Null where the contribution leaves from where it is: fp32 rows in one piece.
  std::byte* send_staging(std::size_t field, std::size_t arrival) const;
  std::uint64_t wire_bytes(std::size_t field, const ChunkTransfer& transfer) const;

  struct Outgoing {
    std::size_t item = 0;
    bool own = false;
    bool submitted = false;
  };

  const std::shared_ptr<OpState> op_;
  const std::shared_ptr<const Prepared::Data> prepared_;
  const std::vector<ReduceField> fields_;
  const Buffer staging_;
  std::vector<std::size_t> spec_index_;             // of each field in the prepared spec
  std::vector<std::vector<Outgoing>> outgoing_;     // [field][arrival]
  std::vector<std::vector<std::size_t>> incoming_;  // [field][departure] -> item
  std::vector<std::vector<std::size_t>>
      departures_of_;  // [own chunk - first own] -> departures, in the order of adding

 private:
  std::map<ChunkId, std::size_t> arrival_of_;  // chunk -> arrival
  bool finished_ = false;
};

std::shared_ptr<ReductionState> make_host_reduction(std::shared_ptr<CommunicatorImpl> comm, std::shared_ptr<OpState> op,
                                                    std::shared_ptr<const Prepared::Data> prepared,
                                                    std::vector<ReduceField> fields, Buffer staging);
/// `slot`: which of the lanes for reductions. The operation has its StreamOp.
std::shared_ptr<ReductionState> make_stream_reduction(std::shared_ptr<CommunicatorImpl> comm,
                                                      std::shared_ptr<OpState> op,
                                                      std::shared_ptr<const Prepared::Data> prepared,
                                                      std::vector<ReduceField> fields, std::size_t slot);

}  // namespace tandem::detail
