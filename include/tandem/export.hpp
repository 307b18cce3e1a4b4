// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library is compiled with hidden visibility; what carries this mark is its binary interface.
#if defined(__GNUC__)
#define TANDEM_EXPORT __attribute__((visibility("default")))
#else
#define TANDEM_EXPORT
#endif
