// SPDX-License-Identifier: Apache-2.0
#include "support/fake_nccl/meeting.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace tandem::fake_nccl {

bool Meeting::create(const std::string& name) {
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool sized = ::ftruncate(fd, static_cast<off_t>(bytes_for(most_ranks))) == 0;
  ::close(fd);
  return sized;
}

Meeting::Meeting(const std::string& name, int size) : size_(size) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "shm_open");
  void* const memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  head_ = static_cast<Head*>(memory);
  pipes_ = reinterpret_cast<Pipe*>(static_cast<char*>(memory) + head_bytes);
  slots_ = reinterpret_cast<char*>(pipes_ + size * size);
}

void Meeting::attach(int rank, const std::string& name) {
  // Of what it sends itself; nobody uses that before all are here.
  for (int p = 0; p < size_; ++p) pipe(rank, p).empty = 1;
  if (++head_->attached == static_cast<std::uint32_t>(size_)) ::shm_unlink(name.c_str());
}

void Meeting::note(int from, int to, bool sends, std::uint64_t what) {
  Pipe& p = pipe(from, to);
  auto& mine = sends ? p.sends : p.receives;
  const auto& theirs = sends ? p.receives : p.sends;
  const std::uint64_t turn = mine.load();
  (sends ? p.sent : p.received)[turn % Pipe::remembered] = what;
  mine = turn + 1;
  const std::uint64_t reached = theirs.load();
  if (reached <= turn || reached > turn + Pipe::remembered) return;  // they look, or it is too long ago
  const std::uint64_t other = (sends ? p.received : p.sent)[turn % Pipe::remembered];
  if (other == what) return;
  std::fprintf(stderr,
               "fake nccl: MISMATCH: message %llu from rank %d to rank %d: %llu bytes of type %llu are sent, %llu of "
               "type %llu received\n",
               static_cast<unsigned long long>(turn), from, to,
               static_cast<unsigned long long>((sends ? what : other) >> 8),
               static_cast<unsigned long long>((sends ? what : other) & 0xff),
               static_cast<unsigned long long>((sends ? other : what) >> 8),
               static_cast<unsigned long long>((sends ? other : what) & 0xff));
  head_->broken = 1;
}

}  // namespace tandem::fake_nccl
