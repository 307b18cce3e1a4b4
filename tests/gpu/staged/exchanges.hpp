// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/p2p/worker.hpp"

namespace tandem::testing_p2p {

/// One rank that exchanges words with all others, in one of the orders in which callers come: order 0 waits for each
/// exchange at once, order 1 issues the next one before it waits for the last, order 2 has long work of the stream in
/// front of every exchange. Throws if a word is wrong.
void exchanges(const Arguments& arguments);

}  // namespace tandem::testing_p2p
