// SPDX-License-Identifier: Apache-2.0
#include "unit/bootstrap/names.hpp"

#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace tandem::testing::names {
namespace {

std::atomic<bool> released{false};
std::atomic<int> waiters{0};
std::atomic<int> questions{0};

}  // namespace

void release() noexcept { released = true; }
void block() noexcept { released = false; }
int waiting() noexcept { return waiters; }
int asked() noexcept { return questions; }

}  // namespace tandem::testing::names

namespace names = tandem::testing::names;

extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* node, const char* service,
                                                                  const addrinfo* hints, addrinfo** result) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto system = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0) return system(node, service, hints, result);
  ++names::questions;
  const std::string_view name = node == nullptr ? "" : node;
  if (name == names::unknown) return EAI_NONAME;
  if (name == names::broken) {
    errno = EMFILE;
    return EAI_SYSTEM;
  }
  if (name != names::blocking) return system(node, service, hints, result);
  ++names::waiters;
  while (!names::released) ::usleep(1000);
  const int code = system("127.0.0.1", service, hints, result);
  --names::waiters;
  return code;
}
