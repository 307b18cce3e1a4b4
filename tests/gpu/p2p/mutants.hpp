// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tandem::testing_p2p {

/// The steps of the protocol, any of which must be missed if it is left out.
enum class Step {
  none,
  arrival_wait,   ///< the consumer waits for the bytes
  ready_wait,     ///< the pusher waits for the receiver
  ready_reset,    ///< and makes sure to wait again next time
  arrival_reset,  ///< the receiver makes sure to wait again next time
  source_wait,    ///< the pusher waits for the sources
  begun_wait,     ///< so do the other streams that push
  sent_wait,      ///< the producer waits until its sources have been read
};
constexpr Step steps[] = {Step::arrival_wait, Step::ready_wait, Step::ready_reset, Step::arrival_reset,
                          Step::source_wait,  Step::begun_wait, Step::sent_wait};
std::string_view to_string(Step step);

/// From here on this process leaves the step out. `own` is the stream of the consumer and producer; others push.
void leave_out(Step step, const void* own);

}  // namespace tandem::testing_p2p
