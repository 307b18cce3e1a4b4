// SPDX-License-Identifier: Apache-2.0
#include "tandem/bench/cuda_parts.hpp"
#include "tandem/error.hpp"

namespace tandem::cli {
namespace {

[[noreturn]] void refuse() { throw Error(ErrorCode::unsupported, "this build has no CUDA code"); }

}  // namespace

std::unique_ptr<BenchData> make_cuda_data(const Device&) { refuse(); }
std::unique_ptr<BenchTimer> make_cuda_timer(Communicator&, BenchRanks&, std::chrono::milliseconds) { refuse(); }
std::unique_ptr<GemmSide> make_gemm_side(const BenchJob&, const Device&, BenchTimer&, BenchRanks&) { refuse(); }

}  // namespace tandem::cli
