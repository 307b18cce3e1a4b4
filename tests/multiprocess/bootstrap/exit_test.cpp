// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "bootstrap/resolve.hpp"
#include "multiprocess/bootstrap/child.hpp"
#include "unit/bootstrap/names.hpp"
#include "unit/bootstrap/threads.hpp"

namespace tandem {
namespace {

using testing::Child;
namespace names = testing::names;

std::size_t threads_before = 0;
bool statics_destroyed = false;
struct LastStatic {
  ~LastStatic() { statics_destroyed = true; }
} last_static;

// What the loader calls when all statics are gone: only now does the resolver of the child below come back.
__attribute__((destructor)) void after_statics() {
  if (names::waiting() == 0) return;
  names::release();
  for (int i = 0; i < 10000 && testing::threads() > threads_before; ++i) ::usleep(1000);
  ::_exit(!statics_destroyed ? 3 : testing::threads() > threads_before ? 4 : 42);
}

TEST(Exit, AResolverThatOutlivesMainHarmsNobody) {
  Child child([](Child::Parent) {
    std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first
    threads_before = testing::threads();
    names::block();
    std::string reason;
    const auto found = detail::resolve({names::blocking, 1}, testing::in_ms(50), &reason);
    while (names::waiting() == 0) ::usleep(1000);
    if (!found.empty()) return 1;
    std::exit(2);
  });
  EXPECT_EQ(child.reap(), 42);
}

}  // namespace
}  // namespace tandem
