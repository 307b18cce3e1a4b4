// SPDX-License-Identifier: Apache-2.0
#include "tandem/work.hpp"

#include "comm/op.hpp"

namespace tandem {

detail::OpState& Work::op() const {
  if (!op_) throw Error(ErrorCode::invalid_usage, "this Work stands for no operation");
  return *op_;
}

void Work::wait(const Stream& stream) const { op().wait(stream); }
void Work::wait(const Stream& stream, std::string_view field) const { op().wait(stream, field); }
void Work::wait(const Stream& stream, std::string_view field, ChunkId chunk) const { op().wait(stream, field, chunk); }
void Work::synchronize(Deadline deadline) const { op().synchronize(deadline); }
bool Work::done() const {
  op().poll();
  return op().done();
}
Status Work::status() const { return op().status(); }
std::vector<std::string> Work::paths() const { return op().paths(); }
std::vector<ChunkTiming> Work::chunks() const { return op().chunk_timings(); }
std::uint64_t Work::received_bytes() const { return op().bytes(true); }
std::uint64_t Work::sent_bytes() const { return op().bytes(false); }
Tensor Work::landed(std::string_view field) const { return op().landed(field); }

}  // namespace tandem
