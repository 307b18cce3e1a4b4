// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "tandem/bench/contender.hpp"
#include "tandem/bench/data.hpp"
#include "tandem/bench/options.hpp"
#include "tandem/communicator.hpp"

namespace tandem::cli {

constexpr std::int64_t bench_row_elements = 576;  ///< as of a latent key

/// Whole rows of each rank in `size` bytes of all ranks together, at least one.
std::int64_t bench_rows(std::uint64_t size, int ranks, std::uint64_t row_bytes);

/// The job's operation as tandem runs it. Collective, blocks. `comm` and `data` must outlive it.
std::unique_ptr<Contender> make_tandem_contender(const BenchJob& job, Communicator& comm, BenchData& data,
                                                 std::uint64_t size);

}  // namespace tandem::cli
