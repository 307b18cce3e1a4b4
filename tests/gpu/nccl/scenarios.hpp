// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/p2p/worker.hpp"

namespace tandem::testing_p2p {

// Scenarios of one rank over the transport nccl. They throw if anything is wrong.

/// Random messages between all ranks, of no byte, of odd sizes, two exchanges at a time.
void exchanges(const Arguments& arguments);
/// The library's own abort is all that helps a stream that waits for rank 1.
void stuck(const Arguments& arguments);
/// What rank 0 sends is not what rank 1 expects.
void mismatch(const Arguments& arguments);
/// NCCL reports an error while an exchange is under way; every rank has to fail in time.
void reported(const Arguments& arguments);
/// Exchanges on two communicators, whose order "reversed" turns around on rank 0: then they get stuck.
void two_communicators(const Arguments& arguments);
/// Making the communicator has to fail, with "unsupported".
void refused(const Arguments& arguments);
/// One rank, NCCL's own communicator: sends to itself, eager and captured, and an abort.
void alone(const Arguments& arguments);

}  // namespace tandem::testing_p2p
