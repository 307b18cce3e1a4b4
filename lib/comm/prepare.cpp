// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/bytes.hpp"
#include "comm/communicator_impl.hpp"

namespace tandem::detail {

namespace {

std::string describe(const std::vector<FieldSpec>& fields) {
  std::string out;
  for (const FieldSpec& f : fields) {
    out += fmt::format("{}{} {}[{}] over {}", out.empty() ? "" : ", ", f.name, to_string(f.dtype), f.row_elements,
                       to_string(f.wire));
  }
  return "(" + out + ")";
}

void reserve(const Device& device, std::array<Region, Prepared::slots>& arena, std::size_t bytes) {
  for (Region& slot : arena) {
    if (slot.buffer.bytes() < bytes || slot.buffer.data() == nullptr) slot = {device.allocate(bytes), 0};
  }
}

}  // namespace

Prepared CommunicatorImpl::prepare(const Plan& plan, const BatchSpec& spec) {
  check_usable();
  if (plan.ranks() != size() || plan.rank() != rank()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a plan for rank {} of {} on rank {} of {}", plan.rank(), plan.ranks(), rank(), size()),
                rank());
  }
  auto data = std::make_shared<Prepared::Data>(plan, spec);
  lay_out(*data);
  const PlanOptions& o = plan.options();
  agree(fmt::format("prepare {}", next_meeting_++),
        {{"the layout", plan.layout().describe() + fmt::format(" #{:016x}", plan.layout().hash())},
         {"plan options", fmt::format("(chunk_tokens {}, carry_rows {}, block_rows {}, max_runs {})", o.chunk_tokens,
                                      o.carry_rows, o.block_rows, o.max_runs)},
         {"the plan", fmt::format("#{:016x}", plan.hash())},
         {"gather fields", describe(spec.gather)},
         {"reduce fields", describe(spec.reduce)},
         {"the caller's fingerprint", "'" + spec.fingerprint + "'"}},
        Deadline::after(options_.rendezvous_timeout));
  if (streamed()) make_tables(*data, options_.device, Deadline::after(options_.rendezvous_timeout));
  if (streamed() && size() > 1) share_arenas(*data);
  if (!one_sided()) {
    reserve(options_.device, gather_arena_, data->gather.bytes);
    reserve(options_.device, reduce_arena_, data->reduce.bytes);
  }
  for (std::size_t i = 0; i < Prepared::slots; ++i) {
    data->gather_slots[i] = gather_arena_[i].buffer;
    data->reduce_slots[i] = reduce_arena_[i].buffer;
    data->streamed.gather_region[i] = gather_arena_[i].id;
    data->streamed.reduce_region[i] = reduce_arena_[i].id;
  }
  prepared_[plan.hash()] = data;
  return Prepared(data);
}

void CommunicatorImpl::share_arenas(Prepared::Data& data) {
  const Deadline deadline = Deadline::after(options_.rendezvous_timeout);
  const auto too_small = [](const auto& arena, std::size_t bytes) {
    return arena[0].buffer.data() == nullptr || arena[0].buffer.bytes() < bytes;
  };
  ByteWriter mine;
  mine.u64(flags_needed(data));
  mine.u8(too_small(gather_arena_, data.gather.bytes) ? 1 : 0);
  mine.u8(too_small(reduce_arena_, data.reduce.bytes) ? 1 : 0);
  mine.string(encode_places(data));
  const auto all =
      meet([&] { return meeting_->collect(fmt::format("places {}", next_meeting_++), mine.bytes(), deadline); });
  // If one rank has to grow all do, so that regions have the same number everywhere.
  bool grow_gather = false;
  bool grow_reduce = false;
  std::vector<std::string> places;
  for (int r = 0; r < size(); ++r) {
    ByteReader reader(all[static_cast<std::size_t>(r)]);
    const std::uint64_t flags = reader.u64();
    if (flags > flags_of_a_lane()) {
      const Error error(
          ErrorCode::unsupported,
          fmt::format("rank {} needs {} arrival flags for what one rank sends it in one operation; transport {} "
                      "has {}: use larger chunks, or fewer fields",
                      r, flags, transports(), flags_of_a_lane()),
          r);
      disagree(error, deadline);
    }
    grow_gather |= reader.u8() != 0;
    grow_reduce |= reader.u8() != 0;
    places.push_back(reader.string());
    reader.expect_end();
  }
  read_places(data, places);
  reserve_lanes(data);
  if (!one_sided()) return;
  const auto grow = [&](std::array<Region, Prepared::slots>& arena, std::size_t bytes) {
    // Operations under way, and what was prepared before, keep the old memory.
    for (Region& slot : arena) slot = share_region(std::max(bytes, slot.buffer.bytes()), deadline);
  };
  if (grow_gather) grow(gather_arena_, data.gather.bytes);
  if (grow_reduce) grow(reduce_arena_, data.reduce.bytes);
}

void CommunicatorImpl::reserve_lanes(const Prepared::Data& data) {
  const auto bytes_of = [](std::span<const ChunkTransfer> transfers, const std::vector<FieldSpec>& fields, bool wire) {
    std::int64_t rows = 0;
    for (const ChunkTransfer& t : transfers) rows += t.step > 0 ? t.rows : 0;
    std::size_t row_bytes = 0;
    for (const FieldSpec& f : fields)
      row_bytes += static_cast<std::size_t>(f.row_elements) * size_of(wire ? f.wire : f.dtype);
    return static_cast<std::size_t>(rows) * row_bytes;
  };
  const Plan& plan = data.plan;
  for (std::uint32_t i = 0; i < Prepared::slots; ++i) {
    endpoint_->reserve(i, bytes_of(plan.arrivals(), data.spec.gather, false),
                       bytes_of(plan.departures(), data.spec.gather, false));
    endpoint_->reserve(Prepared::slots + i, bytes_of(plan.departures(), data.spec.reduce, true),
                       bytes_of(plan.arrivals(), data.spec.reduce, true));
  }
}

Region CommunicatorImpl::share_region(std::size_t bytes, Deadline deadline) {
  // Everybody hears of a rank that has no memory, or the others would go on without it.
  std::optional<Error> error;
  Region region;
  ByteWriter mine;
  try {
    region = endpoint_->allocate(bytes);
    mine.u8(1);
    mine.string(endpoint_->describe(region.id));
  } catch (const Error& e) {
    error = e;
    mine = ByteWriter();
    mine.u8(0);
    mine.i32(static_cast<std::int32_t>(e.code()));
    mine.string(e.what());
  }
  const auto all =
      meet([&] { return meeting_->collect(fmt::format("region {}", next_meeting_++), mine.bytes(), deadline); });
  if (error) disagree(*error, deadline);
  std::vector<std::string> blobs;
  for (int r = 0; r < size(); ++r) {
    ByteReader reader(all[static_cast<std::size_t>(r)]);
    if (reader.u8() == 0) {
      const auto code = static_cast<ErrorCode>(reader.i32());
      disagree(Error(code, fmt::format("rank {}: {}", r, reader.string()), r), deadline);
    }
    blobs.push_back(reader.string());
  }
  endpoint_->attach(region.id, blobs);
  return region;
}

Buffer CommunicatorImpl::allocate(std::size_t bytes) {
  check_usable();
  if (!one_sided()) return options_.device.allocate(bytes);
  Region region = share_region(bytes, Deadline::after(options_.rendezvous_timeout));
  std::erase_if(shared_, [](const SharedMemory& s) { return s.alive.expired(); });
  shared_.push_back({region.buffer.owner(), static_cast<const std::byte*>(region.buffer.data()), bytes, region.id});
  return std::move(region.buffer);
}

const CommunicatorImpl::SharedMemory* CommunicatorImpl::find_shared(const void* data, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  for (const SharedMemory& s : shared_) {
    if (!s.alive.expired() && at >= s.base && at + bytes <= s.base + s.bytes) return &s;
  }
  return nullptr;
}

std::shared_ptr<const Prepared::Data> CommunicatorImpl::find_prepared(const Plan& plan) const {
  const auto it = prepared_.find(plan.hash());
  if (it == prepared_.end()) {
    throw Error(ErrorCode::invalid_usage, fmt::format("this plan was not prepared: {}", plan.layout().describe()),
                rank());
  }
  return it->second;
}

void check_rows(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t row_elements,
                const std::string& what) {
  const bool fits = tensor.valid() && tensor.dtype() == dtype && tensor.size(0) == rows &&
                    (tensor.dims() == 1 ? row_elements == 1 : tensor.row_elements() == row_elements) &&
                    tensor.rows_dense();
  if (fits) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: expected {} [{}, {}] with dense rows, got {}", what, to_string(dtype), rows,
                          row_elements, tensor.valid() ? tensor.describe() : "no tensor"));
}

void check_adjacent_rows(const Tensor& tensor, const std::string& what) {
  if (tensor.size(0) < 2 || tensor.stride(0) == tensor.row_elements()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: rows must follow each other, got a stride of {} elements for rows of {}", what,
                          tensor.stride(0), tensor.row_elements()));
}

}  // namespace tandem::detail
