// SPDX-License-Identifier: Apache-2.0
#include "tandem/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/env.hpp"
#include "bootstrap/rendezvous.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/open_endpoint.hpp"
#include "comm/plugin_host.hpp"
#include "comm/reduce.hpp"
#include "comm/routes.hpp"

namespace tandem {

namespace {

void check_options(const CommunicatorOptions& o) {
  if (o.size < 1) throw Error(ErrorCode::invalid_argument, fmt::format("size = {}; at least 1", o.size));
  if (o.rank < 0 || o.rank >= o.size) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rank = {}; 0 to {}", o.rank, o.size - 1), o.rank);
  }
  if (o.size > 1 && !o.store) throw Error(ErrorCode::invalid_argument, "several ranks need a store to meet in", o.rank);
  if (o.trace && o.trace->rank() != o.rank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the trace of rank {} given to rank {}", o.trace->rank(), o.rank), o.rank);
  }
  if (o.rendezvous_timeout.count() <= 0 || o.operation_timeout.count() <= 0) {
    throw Error(ErrorCode::invalid_argument, "timeouts must be positive", o.rank);
  }
}

// The fastest first, and in the end one that always works.
std::string default_transports(bool on_gpu) {
  if (!on_gpu) return "tcp";
  const auto there = detail::static_transports();
  const bool nccl =
      std::any_of(there.begin(), there.end(), [](const tandem_transport* t) { return t->name == std::string("nccl"); });
  return nccl ? "cuda_p2p,nccl,tcp" : "cuda_p2p,tcp";
}

}  // namespace

Communicator::Communicator(std::shared_ptr<detail::CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    if (impl_) impl_->close();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Communicator::~Communicator() {
  // Streams may still hold the state; its threads and sockets end here.
  if (impl_) impl_->close();
}

Communicator Communicator::create(const CommunicatorOptions& given) {
  check_options(given);
  CommunicatorOptions options = given;
  const Env env = Env::read();
  const bool chosen = options.transport.empty();
  const bool on_gpu = options.device.kind() == DeviceKind::cuda;
  if (chosen) options.transport = env.transport.value_or(default_transports(on_gpu));
  // Before anybody is met.
  for (const std::string& name : detail::split_names(options.transport)) {
    detail::choose_transport(name, options.device);
    if (name == "tcp" && env.interface) options.transport_options.try_emplace("tcp.interface", *env.interface);
  }
  detail::Group group;
  group.rank = options.rank;
  group.job_ranks.resize(static_cast<std::size_t>(options.size));
  std::iota(group.job_ranks.begin(), group.job_ranks.end(), 0);
  const char* reason = !chosen         ? "asked for by the caller"
                       : env.transport ? "asked for by TANDEM_TRANSPORT"
                       : on_gpu        ? "the default for ranks on GPUs"
                                       : "the default for ranks on the host device";
  std::shared_ptr<Store> store = options.store;
  auto impl =
      std::make_shared<detail::CommunicatorImpl>(std::move(options), std::move(group), std::move(store), reason);
  impl->join();
  return Communicator(std::move(impl));
}

Communicator Communicator::from_environment(CommunicatorOptions options) {
  if (!options.store) {
    detail::Membership membership = detail::rendezvous_from_environment(Env::read(), options.rendezvous_timeout);
    options.rank = membership.rank;
    options.size = membership.size;
    options.store = std::move(membership.store);
  }
  return create(options);
}

int Communicator::rank() const noexcept { return impl_->rank(); }
int Communicator::size() const noexcept { return impl_->size(); }
const Device& Communicator::device() const noexcept { return impl_->options().device; }
const std::shared_ptr<Trace>& Communicator::trace() const noexcept { return impl_->options().trace; }
Status Communicator::status() const { return impl_->status(); }
std::string Communicator::route(int peer) const { return impl_->route(peer); }
Prepared Communicator::prepare(const Plan& plan, const BatchSpec& spec) { return impl_->prepare(plan, spec); }
Work Communicator::gather(const Plan& plan, std::span<const GatherField> fields, const Stream& stream) {
  return impl_->gather(plan, fields, stream);
}
Reduction Communicator::reduce(const Plan& plan, std::span<const ReduceField> fields, const Stream& stream) {
  return impl_->reduce(plan, fields, stream);
}
Work Communicator::exchange(std::span<const Transfer> transfers, const Stream& stream) {
  return impl_->exchange(transfers, stream);
}
Buffer Communicator::allocate(std::size_t bytes) { return impl_->allocate(bytes); }
bool Communicator::stream_ordered() const noexcept { return impl_->streamed(); }
bool Communicator::one_sided() const noexcept { return impl_->one_sided(); }
std::optional<Communicator> Communicator::split(int color, int key) {
  std::shared_ptr<detail::CommunicatorImpl> child = impl_->split(color, key);
  if (!child) return std::nullopt;
  return Communicator(std::move(child));
}
void Communicator::barrier(Deadline deadline) { impl_->barrier(deadline); }
void Communicator::finalize(Deadline deadline) { impl_->finalize(deadline); }
void Communicator::abort(const std::string& reason) noexcept { impl_->abort(reason); }
std::int64_t Communicator::clock_offset_ns() const noexcept { return impl_->clock_offset_ns(); }

void Reduction::submit(std::string_view field, ChunkId chunk, const Stream& stream) {
  if (!state_) throw Error(ErrorCode::invalid_usage, "this Reduction stands for no operation");
  state_->submit(field, chunk, stream);
}
void Reduction::submit(ChunkId chunk, const Stream& stream) {
  if (!state_) throw Error(ErrorCode::invalid_usage, "this Reduction stands for no operation");
  state_->submit(chunk, stream);
}
Work Reduction::finish(const Stream& stream) {
  if (!state_) throw Error(ErrorCode::invalid_usage, "this Reduction stands for no operation");
  state_->finish(stream);
  return work();
}
Work Reduction::work() const { return state_ ? Work(state_->op()) : Work(); }

}  // namespace tandem
