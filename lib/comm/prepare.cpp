// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

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

// Grows only: batches of different shape share the memory. Operations under way keep the old buffer alive.
void reserve(const Device& device, std::array<Buffer, Prepared::slots>& arena, std::size_t bytes) {
  for (Buffer& slot : arena) {
    if (slot.bytes() < bytes || slot.data() == nullptr) slot = device.allocate(bytes);
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
  reserve(options_.device, gather_arena_, data->gather.bytes);
  reserve(options_.device, reduce_arena_, data->reduce.bytes);
  data->gather_slots = gather_arena_;
  data->reduce_slots = reduce_arena_;
  prepared_[plan.hash()] = data;
  return Prepared(data);
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
