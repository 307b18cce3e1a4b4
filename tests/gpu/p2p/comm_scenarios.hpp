// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/p2p/worker.hpp"
#include "tandem/communicator.hpp"

namespace tandem::testing_p2p {

/// Over the transport that the environment names. "timeout_ms": of an operation; "shared_gpus": 1 passes that on.
Communicator make_communicator(const Arguments& arguments);

// Scenarios of one rank with the public interface. They throw if anything is wrong.

/// Random plans; pairs of gathers and reductions, the second issued before the first is waited for, checked to the bit.
void collectives(const Arguments& arguments);
/// The same captured once and replayed with new inputs.
void captured(const Arguments& arguments);
/// Rank 1 dies; the others must name it and be able to go on with their GPU.
void comm_death(const Arguments& arguments);
/// Exchanges with the neighbours: blocks go around, as ring attention passes its keys; eager, then as a graph.
void ring(const Arguments& arguments);

}  // namespace tandem::testing_p2p
