// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tandem/kernels.hpp"

namespace tandem {

void KernelSet::select_topk(const ScoreMatrix& /*in*/, const TopkLists& /*out*/, const Stream& /*stream*/) {
  throw Error(ErrorCode::unsupported, fmt::format("kernel set {}: no selection from given scores", name()));
}

}  // namespace tandem
