// SPDX-License-Identifier: Apache-2.0
#include "comm/prepared.hpp"

#include <fmt/format.h>

#include <set>

namespace tandem {

namespace {

constexpr std::size_t alignment = 256;

std::size_t take(std::size_t& used, std::size_t bytes) {
  const std::size_t offset = used;
  used += (bytes + alignment - 1) / alignment * alignment;
  return offset;
}

std::size_t row_bytes(const FieldSpec& field, DType dtype) {
  return static_cast<std::size_t>(field.row_elements) * size_of(dtype);
}

void check_fields(const std::vector<FieldSpec>& fields, const char* what) {
  constexpr std::size_t most = 256;  // a tag has 8 bits for the field
  if (fields.size() > most)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} {} fields; at most {}", fields.size(), what, most));
  std::set<std::string> names;
  for (const FieldSpec& f : fields) {
    if (f.name.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("a {} field has no name", what));
    if (!names.insert(f.name).second) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{} field '{}' is given twice", what, f.name));
    }
    if (f.row_elements < 1) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} field '{}': row_elements = {}; at least 1", what, f.name, f.row_elements));
    }
    if (f.wire != DType::f32 && f.wire != DType::bf16) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} field '{}': wire dtype {}; f32 or bf16", what, f.name, to_string(f.wire)));
    }
  }
}

}  // namespace

namespace detail {

void lay_out(Prepared::Data& data) {
  check_fields(data.spec.gather, "gather");
  check_fields(data.spec.reduce, "reduce");
  const Plan& plan = data.plan;

  Prepared::Data::Layout& g = data.gather;
  for (const FieldSpec& field : data.spec.gather) {
    g.gather.push_back(
        {field, take(g.bytes, row_bytes(field, field.dtype) * static_cast<std::size_t>(plan.landed_rows()))});
    auto stage = [&](std::span<const ChunkTransfer> transfers) {
      std::vector<Prepared::Data::Staging> out;
      for (const ChunkTransfer& t : transfers) {
        const std::size_t bytes =
            t.packed && t.step > 0 ? row_bytes(field, field.dtype) * static_cast<std::size_t>(t.rows) : 0;
        out.push_back({take(g.bytes, bytes), bytes});
      }
      return out;
    };
    g.receive.push_back(stage(plan.arrivals()));
    g.send.push_back(stage(plan.departures()));
  }

  Prepared::Data::Layout& r = data.reduce;
  for (const FieldSpec& field : data.spec.reduce) {
    std::vector<Prepared::Data::Staging> receive;
    for (const ChunkTransfer& t : plan.departures()) {
      const std::size_t bytes = row_bytes(field, field.wire) * static_cast<std::size_t>(t.rows);
      receive.push_back({take(r.bytes, bytes), bytes});
    }
    std::vector<Prepared::Data::Staging> send;
    for (const ChunkTransfer& t : plan.arrivals()) {
      // A contribution travels as one block; fp32 rows that lie in one piece leave from where they are.
      const bool staged = t.step > 0 && (t.runs.size() > 1 || field.wire != DType::f32);
      const std::size_t bytes = staged ? row_bytes(field, field.wire) * static_cast<std::size_t>(t.rows) : 0;
      send.push_back({take(r.bytes, bytes), bytes});
    }
    r.receive.push_back(std::move(receive));
    r.send.push_back(std::move(send));
  }
}

}  // namespace detail

Tensor Prepared::landed(int slot, const std::string& field) const {
  if (!data_) throw Error(ErrorCode::invalid_usage, "this Prepared is empty");
  if (slot < 0 || slot >= slots)
    throw Error(ErrorCode::invalid_argument, fmt::format("slot {}; there are {}", slot, slots));
  for (const Data::GatherSlot& f : data_->gather.gather) {
    if (f.spec.name == field) {
      return Tensor::view(data_->gather_slots[static_cast<std::size_t>(slot)], f.landed, f.spec.dtype,
                          {data_->plan.landed_rows(), f.spec.row_elements});
    }
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("no gather field '{}' was prepared", field));
}

std::uint64_t Prepared::arena_bytes() const {
  if (!data_) return 0;
  return static_cast<std::uint64_t>(slots) * (data_->gather.bytes + data_->reduce.bytes);
}

}  // namespace tandem
