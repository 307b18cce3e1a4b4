// SPDX-License-Identifier: Apache-2.0
#include "comm/gather.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/communicator_impl.hpp"

namespace tandem::detail {

void GatherFields::bind(const GatherField& field, int rank) {
  const auto& all = prepared->gather.gather;
  const auto it = std::find_if(all.begin(), all.end(), [&](const auto& g) { return g.spec.name == field.name; });
  if (it == all.end()) {
    throw Error(ErrorCode::invalid_usage, fmt::format("gather field '{}' was not prepared", field.name), rank);
  }
  const FieldSpec& spec = it->spec;
  if (!field.in_place) {
    check_rows(field.source, spec.dtype, plan.rows(), spec.row_elements, fmt::format("gather source '{}'", field.name));
  } else if (field.source.valid()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("gather field '{}' is in place, so it has no source", field.name), rank);
  } else if (!own_rows) {
    own_rows = std::make_shared<const OwnRows>(plan);
  }
  Tensor to = field.destination;
  if (to.valid()) {
    const std::string what = fmt::format("gather destination '{}'", field.name);
    check_rows(to, spec.dtype, plan.landed_rows(), spec.row_elements, what);
    check_adjacent_rows(to, what);
  } else {
    to = Tensor::view(slot, it->landed, spec.dtype, {plan.landed_rows(), spec.row_elements});
  }
  FieldRows r;
  r.landed = static_cast<std::byte*>(to.data());
  r.row_bytes = to.row_bytes();
  r.source = static_cast<const std::byte*>(field.source.data());
  r.source_stride = field.in_place ? r.row_bytes : field.source.row_stride_bytes();
  r.in_place = field.in_place ? own_rows.get() : nullptr;
  rows.push_back(r);
  fields.push_back(field);
  specs.push_back(static_cast<std::size_t>(it - all.begin()));
  landed.push_back(std::move(to));
}

std::byte* GatherFields::staging(const std::vector<std::vector<Prepared::Data::Staging>>& all, std::size_t field,
                                 std::size_t transfer) const {
  const Prepared::Data::Staging& s = all[specs[field]][transfer];
  return s.bytes > 0 ? static_cast<std::byte*>(slot.data()) + s.offset : nullptr;
}

OpItem GatherFields::item_of(std::size_t field, const ChunkTransfer& transfer, bool receive) const {
  OpItem item;
  item.receive = receive;
  item.field = static_cast<int>(field);
  item.chunk = transfer.chunk;
  item.peer = transfer.peer;
  item.bytes = rows[field].row_bytes * static_cast<std::size_t>(transfer.rows);
  return item;
}

std::vector<std::string> GatherFields::names() const {
  std::vector<std::string> out;
  for (const GatherField& f : fields) out.push_back(f.name);
  return out;
}

Work CommunicatorImpl::gather(const Plan& plan, std::span<const GatherField> fields, const Stream& stream) {
  check_usable();
  const std::shared_ptr<const Prepared::Data> prepared = find_prepared(plan);
  return streamed() ? gather_on_stream(prepared, fields, stream) : gather_by_host(prepared, fields, stream);
}

}  // namespace tandem::detail
