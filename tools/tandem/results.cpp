// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <algorithm>
#include <cstring>

namespace tandem::cli {
namespace {

// Blocks; the operation has a deadline of its own, so this ends.
void run_exchange(Communicator& comm, const std::vector<Transfer>& transfers, const Stream& stream) {
  comm.exchange(transfers, stream).synchronize(Deadline::after(std::chrono::hours(24)));
}
void finish(const Stream& stream) { stream.synchronize(Deadline::after(std::chrono::hours(24))); }

// The members in one order, for both ends of the exchange.
std::vector<Tensor*> members(Results& r) {
  return {&r.outputs.out,  &r.outputs.lse,   &r.outputs.indices,     &r.outputs.length,      &r.outputs.loss,
          &r.gradients.dq, &r.gradients.dkv, &r.gradients.d_index_q, &r.gradients.d_index_k, &r.gradients.d_index_w};
}

std::byte* at(const Buffer& buffer, std::uint64_t offset) { return static_cast<std::byte*>(buffer.data()) + offset; }

// Where peers may put bytes for rank 0: one that writes to others' memory needs the same buffer itself.
Buffer make_window(Communicator& comm, std::uint64_t bytes, bool receives) {
  return receives || comm.one_sided() ? comm.allocate(std::max<std::uint64_t>(bytes, 1)) : Buffer();
}
Transfer send_to(const Communicator& comm, int peer, void* data, std::uint64_t bytes, const Buffer& window,
                 std::uint64_t offset) {
  return {Transfer::Direction::send, peer, data, bytes, comm.one_sided() ? at(window, offset) : nullptr};
}

// Of every rank, on every rank.
std::vector<std::uint64_t> share_sizes(Communicator& comm, std::uint64_t mine, const Stream& stream) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(comm.size()));
  constexpr std::uint64_t size = sizeof(std::uint64_t);
  Buffer window = make_window(comm, sizes.size() * size, true);
  const std::uint64_t own = static_cast<std::uint64_t>(comm.rank()) * size;
  stream.copy(at(window, own), &mine, size);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    transfers.push_back(send_to(comm, peer, at(window, own), size, window, own));
    transfers.push_back(
        {Transfer::Direction::receive, peer, at(window, static_cast<std::uint64_t>(peer) * size), size});
  }
  run_exchange(comm, transfers, stream);
  stream.copy(sizes.data(), window.data(), sizes.size() * size);
  finish(stream);
  return sizes;
}

// Everybody's `sizes[rank]` bytes, which are on the device, one after the other in memory of rank 0's host.
Buffer bring_to_root(Communicator& comm, const std::vector<std::uint64_t>& sizes, void* local, const Stream& stream) {
  std::vector<std::uint64_t> offsets{0};
  for (const std::uint64_t size : sizes) offsets.push_back(offsets.back() + size);
  const bool root = comm.rank() == 0;
  const auto me = static_cast<std::size_t>(comm.rank());
  Buffer window = make_window(comm, offsets.back(), root);
  std::vector<Transfer> transfers;
  if (root) {
    stream.copy(window.data(), local, sizes[0]);
    for (std::size_t peer = 1; peer < sizes.size(); ++peer) {
      transfers.push_back(
          {Transfer::Direction::receive, static_cast<int>(peer), at(window, offsets[peer]), sizes[peer]});
    }
  } else {
    transfers.push_back(send_to(comm, 0, local, sizes[me], window, offsets[me]));
  }
  run_exchange(comm, transfers, stream);
  if (!root) return {};
  if (comm.device().kind() == DeviceKind::host) {
    finish(stream);
    return window;
  }
  Buffer host = Device::host().allocate(offsets.back());
  stream.copy(host.data(), window.data(), offsets.back());
  finish(stream);
  return host;
}

// Rows that lie rank by rank, to their places in global order.
void place_rows(const SequenceLayout& layout, int ranks, const std::byte* rows, const Tensor& all) {
  for (int rank = 0; rank < ranks; ++rank) {
    for (const RowRange& segment : layout.segments(rank)) {
      const std::size_t bytes = static_cast<std::size_t>(segment.size()) * all.row_bytes();
      std::memcpy(static_cast<std::byte*>(all.data()) + static_cast<std::size_t>(segment.begin) * all.row_bytes(), rows,
                  bytes);
      rows += bytes;
    }
  }
}

}  // namespace

Tensor allocate_like(const Device& device, const Tensor& tensor, std::int64_t rows) {
  switch (tensor.dims()) {
    case 1:
      return Tensor::allocate(device, tensor.dtype(), {rows});
    case 2:
      return Tensor::allocate(device, tensor.dtype(), {rows, tensor.size(1)});
    default:
      return Tensor::allocate(device, tensor.dtype(), {rows, tensor.size(1), tensor.size(2)});
  }
}

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
    std::vector<std::uint64_t> sizes;
    for (int rank = 0; rank < comm.size(); ++rank) {
      std::uint64_t rows = 0;
      for (const RowRange& segment : layout.segments(rank)) rows += static_cast<std::uint64_t>(segment.size());
      sizes.push_back(rows * sources[i]->row_bytes());
    }
    const Buffer rows = bring_to_root(comm, sizes, sources[i]->data(), stream);
    if (comm.rank() != 0) continue;
    *targets[i] = allocate_like(Device::host(), *sources[i], layout.total_rows());
    place_rows(layout, comm.size(), static_cast<const std::byte*>(rows.data()), *targets[i]);
  }
  return all;
}

std::vector<std::string> collect_bytes(Communicator& comm, const std::string& local, const Stream& stream) {
  const std::vector<std::uint64_t> sizes = share_sizes(comm, local.size(), stream);
  const Buffer there = comm.device().allocate(local.size());
  stream.copy(there.data(), local.data(), local.size());
  const Buffer all = bring_to_root(comm, sizes, there.data(), stream);
  if (comm.rank() != 0) return {};
  std::vector<std::string> strings;
  const char* from = static_cast<const char*>(all.data());
  for (const std::uint64_t size : sizes) {
    strings.emplace_back(from, size);
    from += size;
  }
  return strings;
}

}  // namespace tandem::cli
