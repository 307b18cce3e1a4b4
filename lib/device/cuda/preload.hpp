// SPDX-License-Identifier: Apache-2.0
#pragma once

/// CUDA loads a kernel when it is first launched, and loading waits for the whole GPU. With a stream that waits for a
/// peer, and a peer that waits for the kernel, that hangs. So every .cu file registers its kernels, and a device loads
/// all of them when it is made.
namespace tandem::detail::cuda {

/// For static objects of .cu files:
///
///     const bool registered = register_kernel(my_kernel<float>);
bool register_kernel_address(const void* kernel);
template <class... Arguments>
bool register_kernel(void (*kernel)(Arguments...)) {
  return register_kernel_address(reinterpret_cast<const void*>(kernel));
}

/// Loads what is registered. The device must be current. Throws unsupported if a kernel was not built for it.
void preload(int ordinal);

}  // namespace tandem::detail::cuda
