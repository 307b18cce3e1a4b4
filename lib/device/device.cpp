// SPDX-License-Identifier: Apache-2.0
#include "tandem/device.hpp"

#include <utility>

#include "device/host/device.hpp"
#include "device/impl.hpp"

namespace tandem {

Device Device::host(const HostDeviceOptions& options) { return Device(std::make_shared<detail::HostDevice>(options)); }

DeviceKind Device::kind() const noexcept { return impl_->kind(); }
std::string Device::describe() const { return impl_->describe(); }
Stream Device::create_stream(const StreamOptions& options) const { return Stream(impl_->create_stream(options)); }
Event Device::create_event() const { return Event(impl_->create_event()); }
Buffer Device::allocate(std::size_t bytes) const { return Buffer(impl_->allocate(bytes), bytes); }
MemoryUse Device::memory_use() const noexcept { return impl_->memory_use(); }
void Device::synchronize(Deadline deadline) const { impl_->synchronize(deadline); }

detail::StreamImpl& Stream::impl() const {
  if (!impl_) throw Error(ErrorCode::invalid_usage, "this Stream is default-made; get one from Device::create_stream");
  return *impl_;
}

Stream Stream::from_native(const Device& device, void* cuda_stream, const std::string& name) {
  return Stream(device.impl().wrap_stream(cuda_stream, name));
}

Device Stream::device() const { return Device(impl().device_handle()); }
const std::string& Stream::name() const { return impl().name(); }
void Stream::wait(const Event& event) const { impl().wait(event.impl()); }
void Stream::record(const Event& event) const { impl().record(event.impl()); }
void Stream::copy(void* destination, const void* source, std::size_t bytes) const {
  impl().copy(destination, source, bytes);
}
void Stream::run(std::function<void()> task) const { impl().run(std::move(task)); }
void Stream::synchronize(Deadline deadline) const { impl().synchronize(deadline); }
bool Stream::idle() const { return impl().idle(); }
void* Stream::native() const { return impl().native(); }

detail::EventImpl& Event::impl() const {
  if (!impl_) throw Error(ErrorCode::invalid_usage, "this Event is default-made; get one from Device::create_event");
  return *impl_;
}

bool Event::query() const { return impl().query(); }
void Event::synchronize(Deadline deadline) const { impl().synchronize(deadline); }
void* Event::native() const { return impl().native(); }

}  // namespace tandem
