// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "device/impl.hpp"
#include "tandem/device.hpp"

namespace tandem::testing_host {

/// Never reached unless something hangs.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
/// For waits that are expected to time out.
inline Deadline shortly() { return Deadline::after(std::chrono::milliseconds(20)); }

inline bool eventually(const std::function<bool()>& condition) {
  for (const Deadline limit = soon(); !limit.passed(); std::this_thread::sleep_for(std::chrono::microseconds(200))) {
    if (condition()) return true;
  }
  return condition();
}

/// Holds streams until opened, at the latest when it goes, so that a failed test does not leave a thread stuck.
class Gate {
 public:
  explicit Gate(const Device& device) : signal_(device.impl().create_signal()) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void hold(const Stream& stream) const { stream.impl().wait(signal_, {}); }
  void open() const { signal_->set(); }

 private:
  std::shared_ptr<detail::SignalImpl> signal_;
};

inline void expect_error(const std::function<void()>& body, ErrorCode code, const std::string& text) {
  try {
    body();
    ADD_FAILURE() << "did not throw; expected '" << text << "'";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_THAT(e.what(), ::testing::HasSubstr(text));
  }
}

#define EXPECT_ERROR(statement, code, text)                                                  \
  do {                                                                                       \
    SCOPED_TRACE(#statement);                                                                \
    ::tandem::testing_host::expect_error([&] { static_cast<void>(statement); }, code, text); \
  } while (false)

}  // namespace tandem::testing_host
