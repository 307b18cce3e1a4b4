// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <algorithm>
#include <cstring>

namespace tandem::cli {
namespace {

std::byte* row_address(const Tensor& tensor, std::int64_t row) {
  return static_cast<std::byte*>(tensor.data()) + static_cast<std::size_t>(row) * tensor.row_bytes();
}

Tensor allocate_like(const Device& device, const Tensor& local, std::int64_t rows) {
  switch (local.dims()) {
    case 1:
      return Tensor::allocate(device, local.dtype(), {rows});
    case 2:
      return Tensor::allocate(device, local.dtype(), {rows, local.size(1)});
    default:
      return Tensor::allocate(device, local.dtype(), {rows, local.size(1), local.size(2)});
  }
}

// Blocks; the operation has a deadline of its own, so this ends.
void run_exchange(Communicator& comm, const std::vector<Transfer>& transfers, const Stream& stream) {
  comm.exchange(transfers, stream).synchronize(Deadline::after(std::chrono::hours(24)));
}

// The members in one order, for both ends of the exchange.
std::vector<Tensor*> members(Results& r) {
  return {&r.outputs.out,  &r.outputs.lse,   &r.outputs.indices,     &r.outputs.length,      &r.outputs.loss,
          &r.gradients.dq, &r.gradients.dkv, &r.gradients.d_index_q, &r.gradients.d_index_k, &r.gradients.d_index_w};
}

std::uint64_t bytes_of(const RowRange& segment, const Tensor& tensor) {
  return static_cast<std::uint64_t>(segment.size()) * tensor.row_bytes();
}

// Of this rank's rows to rank 0, segment by segment, as receives() expects them.
std::vector<Transfer> sends(const Communicator& comm, const SequenceLayout& layout, const Tensor& local) {
  std::vector<Transfer> transfers;
  std::int64_t row = 0;
  for (const RowRange& segment : layout.segments(comm.rank())) {
    transfers.push_back({Transfer::Direction::send, 0, row_address(local, row), bytes_of(segment, local)});
    row += segment.size();
  }
  return transfers;
}

// Of everybody's rows, right to their place in `all`; rank 0's own are copied.
std::vector<Transfer> receives(const Communicator& comm, const SequenceLayout& layout, const Tensor& local,
                               const Tensor& all) {
  std::vector<Transfer> transfers;
  std::int64_t row = 0;
  for (const RowRange& segment : layout.segments(0)) {
    std::memcpy(row_address(all, segment.begin), row_address(local, row), bytes_of(segment, local));
    row += segment.size();
  }
  for (int peer = 1; peer < comm.size(); ++peer) {
    for (const RowRange& segment : layout.segments(peer)) {
      transfers.push_back(
          {Transfer::Direction::receive, peer, row_address(all, segment.begin), bytes_of(segment, all)});
    }
  }
  return transfers;
}

}  // namespace

std::vector<const Tensor*> Results::by_row() const {
  std::vector<const Tensor*> result;
  for (const Tensor* t : members(const_cast<Results&>(*this))) result.push_back(t);
  return result;
}

Results collect_results(Communicator& comm, const SequenceLayout& layout, const Results& local, const Stream& stream) {
  Results all;
  const std::vector<const Tensor*> sources = local.by_row();
  const std::vector<Tensor*> targets = members(all);
  // One exchange for each tensor: an operation has a deadline, and together they may be large.
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (comm.rank() == 0) *targets[i] = allocate_like(comm.device(), *sources[i], layout.total_rows());
    run_exchange(comm,
                 comm.rank() == 0 ? receives(comm, layout, *sources[i], *targets[i]) : sends(comm, layout, *sources[i]),
                 stream);
  }
  return all;
}

std::vector<std::string> collect_bytes(Communicator& comm, const std::string& local, const Stream& stream) {
  std::uint64_t size = local.size();
  std::string copy = local;
  if (comm.rank() != 0) {
    run_exchange(comm, {{Transfer::Direction::send, 0, &size, sizeof(size)}}, stream);
    run_exchange(comm, {{Transfer::Direction::send, 0, copy.data(), size}}, stream);
    return {};
  }
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::uint64_t> sizes(ranks);
  std::vector<std::string> all(ranks);
  all[0] = local;
  std::vector<Transfer> transfers;
  for (int peer = 1; peer < comm.size(); ++peer) {
    transfers.push_back({Transfer::Direction::receive, peer, &sizes[static_cast<std::size_t>(peer)], sizeof(size)});
  }
  run_exchange(comm, transfers, stream);
  transfers.clear();
  for (int peer = 1; peer < comm.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    all[p].resize(sizes[p]);
    transfers.push_back({Transfer::Direction::receive, peer, all[p].data(), sizes[p]});
  }
  run_exchange(comm, transfers, stream);
  return all;
}

}  // namespace tandem::cli
