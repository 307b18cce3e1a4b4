// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

namespace tandem {
namespace {

// The level is read once in a process, so each case has one of its own; returns what it wrote on stderr.
std::string stderr_of(const char* level, const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "pipe failed";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    if (level != nullptr) {
      ::setenv("TANDEM_LOG", level, 1);
    } else {
      ::unsetenv("TANDEM_LOG");
    }
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return text;
}

void one_of_each() {
  log::error("e {}", 1);
  log::warn("w {}", 2);
  log::info("i {}", 3);
  log::debug("d {}", 4);
}

TEST(Log, LevelDecidesWhatIsWritten) {
  const std::string e = "[tandem] error: e 1\n", w = "[tandem] warn: w 2\n", i = "[tandem] info: i 3\n",
                    d = "[tandem] debug: d 4\n";
  EXPECT_EQ(stderr_of(nullptr, one_of_each), e + w);
  EXPECT_EQ(stderr_of("error", one_of_each), e);
  EXPECT_EQ(stderr_of("warn", one_of_each), e + w);
  EXPECT_EQ(stderr_of("info", one_of_each), e + w + i);
  EXPECT_EQ(stderr_of("debug", one_of_each), e + w + i + d);
}

TEST(Log, UnknownLevelIsReportedOnceAndActsAsWarn) {
  EXPECT_EQ(stderr_of("loud", one_of_each),
            "[tandem] warn: TANDEM_LOG is 'loud', which is none of error, warn, info, debug; using warn\n"
            "[tandem] error: e 1\n[tandem] warn: w 2\n");
}

TEST(Log, LinesNameTheRankAndStayOneLine) {
  EXPECT_EQ(stderr_of(nullptr,
                      [] {
                        log::set_process_rank(2);
                        log::warn("{}", "two\nlines");
                      }),
            "[tandem rank 2] warn: two lines\n");
}

TEST(Log, LinesOfThreadsDoNotMix) {
  const std::string filler(300, 'x');
  const std::string text = stderr_of(nullptr, [&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) log::warn("{} {}", t, filler);
      });
    }
    for (auto& t : threads) t.join();
  });
  std::istringstream lines(text);
  std::string line;
  int count[4] = {};
  while (std::getline(lines, line)) {
    int t = 0;
    while (t < 4 && line != fmt::format("[tandem] warn: {} {}", t, filler)) ++t;
    ASSERT_LT(t, 4) << line;
    ++count[t];
  }
  for (const int n : count) EXPECT_EQ(n, 50);
}

}  // namespace
}  // namespace tandem
