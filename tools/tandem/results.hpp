// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tandem/communicator.hpp"
#include "tandem/dsa.hpp"
#include "tandem/trace.hpp"

namespace tandem::cli {

/// Forward and backward results of some rows.
struct Results {
  DsaOutputs outputs;
  DsaGradients gradients;

  /// Those that have an entry for each row.
  std::vector<const Tensor*> by_row() const;
};

/// Dense memory of its own like `tensor`'s, but for the number of rows.
Tensor allocate_like(const Device& device, const Tensor& tensor, std::int64_t rows);

/// Brings every rank's rows to rank 0's host, in global order. Collective; empty on the other ranks. `local` is on the
/// communicator's device.
Results collect_results(Communicator& comm, const SequenceLayout& layout, const Results& local, const Stream& stream);

/// One value of T from every rank, on rank 0; T travels as it is. Collective; empty on the other ranks.
std::vector<std::string> collect_bytes(Communicator& comm, const std::string& local, const Stream& stream);

}  // namespace tandem::cli
