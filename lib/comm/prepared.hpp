// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/stream_layout.hpp"
#include "tandem/communicator.hpp"

namespace tandem {

/// Where everything of a plan's operations lies in the communicator's memory. Offsets are from the start of a slot's
/// buffer.
struct Prepared::Data {
  struct GatherSlot {
    FieldSpec spec;
    std::size_t landed = 0;  ///< landed rows
  };
  /// Staging of one transfer's rows: packed transfers of a gather, contributions of a reduction.
  struct Staging {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  struct Layout {
    std::vector<GatherSlot> gather;
    std::vector<std::vector<Staging>> receive;  ///< [field][arrival or departure]; bytes 0 if it needs none
    std::vector<std::vector<Staging>> send;
    std::size_t bytes = 0;
  };

  Plan plan;
  BatchSpec spec;
  Layout gather;
  Layout reduce;
  std::array<Buffer, Prepared::slots> gather_slots;
  std::array<Buffer, Prepared::slots> reduce_slots;
  detail::StreamLayout streamed;  ///< of stream-ordered transports

  explicit Data(const Plan& p, BatchSpec s) : plan(p), spec(std::move(s)) {}
};

namespace detail {

/// Computes both layouts. Throws invalid_argument for a field without name, elements, or with a name used twice.
void lay_out(Prepared::Data& data);

}  // namespace detail
}  // namespace tandem
