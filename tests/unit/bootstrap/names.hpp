// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Takes the place of the system's getaddrinfo in the executable that names.cpp is part of: a few names behave as said
/// here, all others are passed on. Nothing in it needs a constructor or destructor, so that it works until the very end
/// of the process.
namespace tandem::testing::names {

inline constexpr const char* unknown = "unknown.test";    ///< EAI_NONAME
inline constexpr const char* broken = "broken.test";      ///< EAI_SYSTEM, with errno EMFILE
inline constexpr const char* blocking = "blocking.test";  ///< waits for release(), then is 127.0.0.1

/// Lets go those that wait for `blocking`, and all that ask from now on; block() undoes it.
void release() noexcept;
void block() noexcept;
/// How many wait for `blocking`.
int waiting() noexcept;
/// How often anything was asked for that could have taken a while: without AI_NUMERICHOST.
int asked() noexcept;

}  // namespace tandem::testing::names
