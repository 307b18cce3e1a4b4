// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tandem/error.hpp"

namespace tandem::testing {

/// The message of the invalid_argument that `call` throws.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tandem::testing

#define EXPECT_REJECTED(call, text) \
  EXPECT_THAT(::tandem::testing::message_of([&] { (void)(call); }), ::testing::HasSubstr(text))
