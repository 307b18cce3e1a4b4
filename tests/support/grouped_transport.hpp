// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A stream-ordered, two-sided transport between ranks of this process, on streams of host devices, that starts sends
/// and receives in groups: what nccl is on GPUs, for machines that have none. Options and what it does about a host
/// that breaks the rules are those of stream_transport.hpp.
namespace tandem::testing {

/// Makes it known to communicators as "grouped"; idempotent.
void register_grouped_transport();

}  // namespace tandem::testing
