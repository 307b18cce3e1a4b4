// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::detail::sm90 {

/// Lists of callers may hold anything; the kernels of this folder take plain ones: distinct landed rows, ascending.
struct PlainListsArgs {
  std::int64_t row_begin = 0;  ///< rows that are looked at, of s; of others nothing is read or written
  std::int64_t row_end = 0;
  std::int64_t keys = 0;                  ///< n
  std::int32_t topk = 0;                  ///< K
  const std::int32_t* indices = nullptr;  ///< [s, K]
  const std::int32_t* length = nullptr;   ///< [s]
  std::int32_t* plain_length = nullptr;   ///< [s]: length of a plain list, 0 of another
  std::int32_t* other = nullptr;          ///< [s]: 0 of a plain list, 1 of another
  std::int32_t* others = nullptr;         ///< [s]: the rows whose lists are not plain, in any order
  std::int32_t* other_count = nullptr;    ///< [1]: how many they are
};

/// Enqueues on `stream`. Device pointers.
cudaError_t launch_plain_lists(const PlainListsArgs& args, cudaStream_t stream);
cudaError_t load_plain_lists_kernel();

}  // namespace tandem::detail::sm90
