// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tandem::detail::cuda {

// As e4m3_value of the host: exact, subnormals and NaN too.
__device__ inline float float_from_e4m3(unsigned bits) {
  const unsigned sign = (bits & 0x80U) << 24;
  const unsigned magnitude = bits & 0x7FU;
  unsigned value = (magnitude << 20) + ((127U - 7U) << 23);
  if (magnitude < 8) value = __float_as_uint(static_cast<float>(magnitude) * 0x1p-9F);
  if (magnitude == 0x7F) value = 0x7FC00000U;
  return __uint_as_float(sign | value);
}

}  // namespace tandem::detail::cuda
