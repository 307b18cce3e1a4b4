// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/cuda_parts.hpp"
#include "tandem/error.hpp"

namespace tandem::cli {

std::unique_ptr<NcclSide> make_nccl_side(const BenchJob&, const Device&, BenchRanks&) {
  throw Error(ErrorCode::unsupported, "--versus: this build has no NCCL; it needs nccl.h to be built with it");
}

}  // namespace tandem::cli
