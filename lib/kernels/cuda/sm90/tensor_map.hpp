// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::detail::sm90 {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that nothing links against the driver; null if there is none.
inline EncodeTiled find_encode() {
  static const EncodeTiled encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(found)
                                                                         : nullptr;
  }();
  return encode;
}

/// bf16 [rows, heads, columns] with strides in elements, in boxes of 64 columns and `box_heads` heads; what is outside
/// the tensor is 0.
inline cudaError_t make_head_map(CUtensorMap& map, const void* data, std::int64_t rows, std::int64_t heads,
                                 std::int64_t columns, std::int64_t row_stride, std::int64_t head_stride,
                                 int box_heads) {
  const EncodeTiled encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(head_stride) * 2, static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_heads), 1};
  const cuuint32_t step[3] = {1, 1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), size, stride, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tandem::detail::sm90
