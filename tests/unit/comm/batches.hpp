// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <vector>

#include "tandem/communicator.hpp"

namespace tandem::testing {

/// A random batch of packed documents, some empty, some padded.
struct Batch {
  std::vector<std::int64_t> cu, padded;
  Partition partition = Partition::zigzag;
  PlanOptions options;

  SequenceLayout layout(int ranks) const {
    return partition == Partition::zigzag ? SequenceLayout::zigzag(cu, ranks, padded)
                                          : SequenceLayout::contiguous(cu, ranks, padded);
  }
  Plan plan(int rank, int ranks) const { return Plan(layout(ranks), rank, options); }
};

inline Batch random_batch(std::mt19937_64& rng, std::int64_t most_rows = 60) {
  auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(rng);
  };
  Batch b;
  b.cu = b.padded = {0};
  const std::int64_t documents = pick(1, 5);
  for (std::int64_t i = 0; i < documents; ++i) {
    const std::int64_t length = pick(0, 3) == 0 ? 0 : pick(1, most_rows);
    b.cu.push_back(b.cu.back() + length);
    b.padded.push_back(b.padded.back() + length + pick(0, 2) * pick(0, 3));
  }
  b.partition = pick(0, 1) == 0 ? Partition::zigzag : Partition::contiguous;
  b.options.chunk_tokens = pick(1, 20);
  b.options.block_rows = pick(1, 30);
  b.options.carry_rows = pick(1, 8);
  b.options.max_runs = pick(1, 4);
  return b;
}

}  // namespace tandem::testing
