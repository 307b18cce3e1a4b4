// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "process.hpp"
#include "tandem/error.hpp"
#include "usage.hpp"

namespace tandem::cli {
namespace {

// A new file beside `path`, so that rename() stays within one file system.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : name_(path + ".XXXXXX"), fd_(mkostemp(name_.data(), O_CLOEXEC)) {}
  ~TemporaryFile() {
    if (fd_.valid() && !name_.empty()) unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  int fd() const noexcept { return fd_.get(); }
  bool write(std::string_view content) const noexcept {
    while (!content.empty()) {
      const ssize_t n = ::write(fd_.get(), content.data(), content.size());
      if (n < 0 && errno != EINTR) return false;
      if (n > 0) content.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool rename_to(const std::string& path) noexcept {
    if (std::rename(name_.c_str(), path.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  std::string name_;
  Fd fd_;
};

// What stands in the way of replacing `path` by a file, or "". Renaming over a device would destroy it.
std::string obstacle(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return "";
  if (S_ISDIR(status.st_mode)) return std::strerror(EISDIR);
  if (!S_ISREG(status.st_mode)) return "not a regular file";
  return "";
}

}  // namespace

std::string read_input_file(std::string_view option, const std::string& path, std::size_t most) {
  const auto fail = [&](int error) {
    throw UsageError(fmt::format("{}: cannot read '{}': {}", option, path, std::strerror(error)));
  };
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail(errno);
  std::string content;
  char buffer[65536];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n == 0) return content;
    if (n > 0) {
      content.append(buffer, static_cast<std::size_t>(n));
      if (content.size() > most) fail(EFBIG);
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void test_writable(std::string_view option, const std::string& path) {
  std::string reason = obstacle(path);
  if (reason.empty()) {
    const TemporaryFile file(path);
    if (file.fd() >= 0) return;
    reason = std::strerror(errno);
  }
  throw UsageError(fmt::format("{}: cannot write '{}': {}", option, path, reason));
}

void write_atomically(const std::string& path, std::string_view content) {
  std::string reason = obstacle(path);
  if (reason.empty()) {
    TemporaryFile file(path);
    // mkostemp gives the owner alone access; what a shell would make is what a user expects.
    const mode_t mask = umask(0);
    umask(mask);
    if (file.fd() >= 0 && fchmod(file.fd(), 0666 & ~mask) == 0 && file.write(content) && file.rename_to(path)) return;
    reason = std::strerror(errno);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("cannot write '{}': {}", path, reason));
}

}  // namespace tandem::cli
