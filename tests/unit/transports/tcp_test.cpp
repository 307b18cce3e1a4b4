// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "conformance/mesh.hpp"
#include "transports/tcp/address.hpp"
#include "transports/tcp/wire.hpp"

extern "C" const tandem_transport* tandem_transport_query_v0_tcp(void);

namespace tandem {
namespace {

using conformance::code;
using conformance::fresh_group;
using conformance::Mesh;
using conformance::poisoned;
using conformance::Rank;
using conformance::receive_from;
using conformance::send_to;
using std::chrono::milliseconds;
using std::chrono::seconds;
using tcp::Frame;
using tcp::Hello;
using Group = std::array<std::uint8_t, 16>;

const tandem_transport& transport() { return *tandem_transport_query_v0_tcp(); }

/// A socket of the test's own that talks to the port where a rank listens.
class Socket {
 public:
  explicit Socket(const Rank& rank) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto blob = rank.address();
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(tcp::Address::decode({blob.data(), blob.size()}).port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
    const timeval patience{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;

  void say(const void* bytes, std::size_t count) { ::send(fd_, bytes, count, MSG_NOSIGNAL); }
  template <class T>
  void say(const T& message) {
    say(&message, sizeof(message));
  }
  bool hear(void* bytes, std::size_t count) {
    return ::recv(fd_, bytes, count, MSG_WAITALL) == static_cast<ssize_t>(count);
  }
  /// Closed or reset by the other end, before the patience ends.
  bool was_dropped() {
    char rest[1024];
    ssize_t got = 0;
    while ((got = ::recv(fd_, rest, sizeof(rest), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  int fd_;
};

Hello ask_as_rank_1(const Group& group) {
  Hello hello;
  hello.step = Hello::ask;
  hello.group = group;
  hello.from = 1;
  hello.to = 0;
  hello.size = 2;
  return hello;
}

bool wait_connected(Rank& rank, int peer) {
  const auto deadline = Deadline::after(seconds(10));
  while (rank.connect_test(peer) == TANDEM_IN_PROGRESS && !deadline.passed())
    std::this_thread::sleep_for(milliseconds(1));
  return rank.connect_test(peer) == TANDEM_OK;
}

bool has_log(const Rank& rank, const std::string& part) {
  const auto logs = rank.logs();
  return std::any_of(logs.begin(), logs.end(), [&](const auto& l) { return l.find(part) != std::string::npos; });
}

/// Greets rank 0 the right way and is rank 1 from then on.
void become_rank_1(Socket& socket, Rank& rank, const Group& group) {
  Hello hello = ask_as_rank_1(group);
  socket.say(hello);
  Hello answer;
  ASSERT_TRUE(socket.hear(&answer, sizeof(answer)));
  EXPECT_EQ(answer.step, Hello::accept);
  EXPECT_EQ(answer.from, 0);
  EXPECT_EQ(answer.to, 1);
  hello.step = Hello::confirm;
  socket.say(hello);
  ASSERT_TRUE(wait_connected(rank, 1));
}

TEST(Tcp, WrongHellosAreDroppedCountedAndHarmNobody) {
  const auto group = fresh_group();
  Rank rank(transport(), 0, 2, group, {});
  const auto right = ask_as_rank_1(group);
  std::vector<Hello> wrong(8, right);
  wrong[0].magic ^= 1;
  wrong[1].version += 1;
  wrong[2].group[15] ^= 1;
  wrong[3].from = 0;
  wrong[4].from = 2;
  wrong[5].to = 1;
  wrong[6].size = 3;
  wrong[7].step = Hello::confirm;
  std::size_t dropped = 0;
  for (const auto& hello : wrong) {
    Socket socket(rank);
    socket.say(hello);
    EXPECT_TRUE(socket.was_dropped());
    EXPECT_EQ(rank.logs().size(), ++dropped);
    EXPECT_NE(rank.logs().back().find(std::to_string(dropped) + " dropped so far"), std::string::npos);
  }
  const std::vector<char> garbage(1U << 20, 'G');
  {
    Socket socket(rank);
    socket.say(garbage.data(), garbage.size());
    EXPECT_TRUE(socket.was_dropped());
    Socket brief(rank);
    brief.say(garbage.data(), 10);
  }
  Socket silent(rank);
  EXPECT_EQ(rank.connect_test(1), TANDEM_IN_PROGRESS);

  Rank other(transport(), 1, 2, group, {});
  const std::vector<std::vector<char>> addresses{rank.address(), other.address()};
  rank.connect(addresses);
  other.connect(addresses);
  ASSERT_TRUE(wait_connected(rank, 1));
  ASSERT_TRUE(wait_connected(other, 0));
  char byte = 0;
  auto& receive = rank.post({receive_from(1, 1, &byte, 1)});
  other.post({send_to(0, 1, "x", 1)});
  ASSERT_TRUE(receive.wait());
  EXPECT_EQ(byte, 'x');
  {
    Socket second(rank);
    second.say(right);
    EXPECT_TRUE(second.was_dropped()) << "rank 1 is connected already";
  }
  EXPECT_TRUE(rank.failures().empty());
}

TEST(Tcp, EndWithoutGoodbyeIsAFailure) {
  const auto group = fresh_group();
  Rank rank(transport(), 0, 2, group, {});
  char byte = 0;
  auto& early = rank.post({receive_from(1, 1, &byte, 1)});
  {
    Socket socket(rank);
    become_rank_1(socket, rank, group);
    Frame announced;  // left unread it would turn the end into a reset
    ASSERT_TRUE(socket.hear(&announced, sizeof(announced)));
  }
  ASSERT_TRUE(early.wait());
  EXPECT_TRUE(early.all_once_with(code(ErrorCode::peer_failed)));
  ASSERT_TRUE(rank.wait_failures(1));
  EXPECT_NE(rank.failures().begin()->second.find("good-bye"), std::string::npos);
  EXPECT_EQ(rank.connect_test(1), code(ErrorCode::peer_failed));
  auto& late = rank.post({send_to(1, 1, &byte, 1)});
  ASSERT_TRUE(late.wait());
  EXPECT_TRUE(late.all_once_with(code(ErrorCode::peer_failed)));
  EXPECT_EQ(rank.failures().size(), 1U);
}

TEST(Tcp, FramesThatMakeNoSenseEndTheConnectionAndTouchNoMemory) {
  const Frame ready{Frame::ready, 0, 0, 9, 4}, unknown_kind{77, 0, 0, 0, 0}, unknown_id{Frame::data, 0, 5, 1, 8},
      too_long{Frame::data, 0, 0, 1, 17}, unknown_mismatch{Frame::mismatch, 0, 3, 1, 4};
  for (const Frame& frame : {unknown_kind, unknown_id, too_long, unknown_mismatch}) {
    const auto group = fresh_group();
    Rank rank(transport(), 0, 2, group, {});
    std::vector<char> buffer = poisoned(16 + 16);
    auto& receive = rank.post({receive_from(1, 1, buffer.data(), 16)});
    Socket socket(rank);
    become_rank_1(socket, rank, group);
    Frame announced;
    ASSERT_TRUE(socket.hear(&announced, sizeof(announced)));
    EXPECT_EQ(announced.kind, Frame::ready);
    EXPECT_EQ(announced.bytes, 16U);
    socket.say(ready);  // one that does make sense, first
    socket.say(frame);
    const std::vector<char> payload(64, 'P');
    socket.say(payload.data(), payload.size());
    ASSERT_TRUE(receive.wait());
    EXPECT_TRUE(receive.all_once_with(code(ErrorCode::peer_failed)));
    EXPECT_TRUE(rank.wait_failures(1));
    EXPECT_EQ(buffer, poisoned(32));
  }
}

TEST(Tcp, DataThatComesByteByByteArrives) {
  const auto group = fresh_group();
  Rank rank(transport(), 0, 2, group, {});
  std::vector<char> buffer = poisoned(40);
  auto& receive = rank.post({receive_from(1, 1, buffer.data(), 40)});
  Socket socket(rank);
  become_rank_1(socket, rank, group);
  Frame announced;
  ASSERT_TRUE(socket.hear(&announced, sizeof(announced)));
  std::vector<char> stream;
  const auto sent = conformance::pattern(1, 0, 1, 0, 40);
  for (const std::size_t from : {0U, 25U}) {
    const std::size_t bytes = from == 0 ? 25 : 15;
    const Frame header{Frame::data, 0, announced.id, 1, bytes};
    const auto* raw = reinterpret_cast<const char*>(&header);
    stream.insert(stream.end(), raw, raw + sizeof(header));
    stream.insert(stream.end(), sent.begin() + static_cast<std::ptrdiff_t>(from),
                  sent.begin() + static_cast<std::ptrdiff_t>(from + bytes));
  }
  for (const char byte : stream) {
    socket.say(byte);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ASSERT_TRUE(receive.wait());
  EXPECT_TRUE(receive.all_once_with(TANDEM_OK));
  EXPECT_EQ(buffer, sent);
}

class TcpByEitherSocket : public ::testing::TestWithParam<conformance::Options> {};
INSTANTIATE_TEST_SUITE_P(, TcpByEitherSocket,
                         ::testing::Values(conformance::Options{}, conformance::Options{{"unix_sockets", "0"}}),
                         [](const auto& info) { return info.param.empty() ? "Unix" : "Loopback"; });

TEST_P(TcpByEitherSocket, KilledPeerIsNamed) {
  const auto group = fresh_group();
  int to_child[2], to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Nothing of the test's framework may run here: this process ends by being killed, or by itself after a while.
    ::alarm(30);
    Rank rank(transport(), 1, 2, group, GetParam());
    std::vector<char> first(4096);
    const auto got = ::read(to_child[0], first.data(), first.size());
    first.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    rank.connect({first, rank.address()});
    const bool connected = wait_connected(rank, 0);
    std::vector<char> big(64U << 20);
    rank.post({send_to(0, 1, big.data(), big.size()), receive_from(0, 2, big.data(), 1)});
    if (::write(to_parent[1], connected ? "y" : "n", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(1);
  }
  Rank rank(transport(), 0, 2, group, GetParam());
  const auto own = rank.address();
  ASSERT_EQ(::write(to_child[1], own.data(), own.size()), static_cast<ssize_t>(own.size()));
  char connected = 'n';
  ASSERT_EQ(::read(to_parent[0], &connected, 1), 1);
  ASSERT_EQ(connected, 'y');
  std::vector<char> buffer(64U << 20);
  auto& pending = rank.post({receive_from(1, 3, buffer.data(), 1), receive_from(1, 4, buffer.data(), 10)});
  std::this_thread::sleep_for(milliseconds(5));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(pending.wait(Deadline::after(seconds(5))));
  EXPECT_TRUE(pending.all_once_with(code(ErrorCode::peer_failed)));
  EXPECT_NE(pending.message(0).find("rank 1"), std::string::npos) << pending.message(0);
  EXPECT_TRUE(rank.wait_failures(1));
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(fd);
}

bool host_has_ipv6_loopback() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 where{};
  where.sin6_family = AF_INET6;
  where.sin6_addr = in6addr_loopback;
  const bool works = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
  if (fd >= 0) ::close(fd);
  return works;
}

TEST(Tcp, Ipv6) {
  if (!host_has_ipv6_loopback()) GTEST_SKIP() << "SKIPPED: this host has no IPv6 loopback address";
  Mesh mesh(transport(), 3, {{"interface", "::1"}, {"unix_sockets", "0"}});
  ASSERT_TRUE(mesh.connected());
  const auto blob = mesh[0].address();
  EXPECT_EQ(tcp::Address::decode({blob.data(), blob.size()}).addresses, std::vector<std::string>{"::1"});
  char byte = 0;
  auto& receive = mesh[2].post({receive_from(0, 1, &byte, 1)});
  mesh[0].post({send_to(2, 1, "x", 1)});
  ASSERT_TRUE(receive.wait());
  EXPECT_EQ(byte, 'x');
}

TEST(Tcp, InterfaceByNameAndOneThatDoesNotExist) {
  Mesh mesh(transport(), 2, {{"interface", "lo"}, {"unix_sockets", "0"}});
  EXPECT_TRUE(mesh.connected());
  Rank rank(transport(), 0, 2, fresh_group(), {{"interface", "nosuch0"}});
  EXPECT_EQ(rank.open_status(), code(ErrorCode::invalid_argument));
  EXPECT_TRUE(has_log(rank, "nosuch0"));
}

TEST(Tcp, UnixSocketAndLoopbackLeadOnOneHostAndAreLeftOutBetweenHosts) {
  tcp::Address address;
  address.host = "here";
  address.port = 7;
  address.local_name = "00abc";
  address.addresses = {"192.0.2.1", "2001:db8::1", "127.0.0.1", "::1", "not an address"};
  const auto round_trip = tcp::Address::decode(address.encode());
  EXPECT_EQ(round_trip.host, "here");
  EXPECT_EQ(round_trip.port, 7);
  EXPECT_EQ(round_trip.addresses, address.addresses);
  EXPECT_EQ(round_trip.local_name, "00abc");
  const auto texts = [&](const std::string& host) {
    std::vector<std::string> list;
    for (const auto& e : address.candidates(host)) list.push_back(tcp::describe(e));
    return list;
  };
  EXPECT_EQ(texts("here"), (std::vector<std::string>{"Unix socket 00abc", "127.0.0.1:7", "[::1]:7", "192.0.2.1:7",
                                                     "[2001:db8::1]:7"}));
  EXPECT_EQ(texts("there"), (std::vector<std::string>{"192.0.2.1:7", "[2001:db8::1]:7"}));
  EXPECT_THROW(tcp::Address::decode(address.encode() + "x"), Error);
  EXPECT_THROW(tcp::Address::decode(std::string_view(address.encode()).substr(0, 9)), Error);
}

TEST(Tcp, RanksOfOneHostMeetAtAUnixSocketAndElseByLoopback) {
  for (const std::string wanted : {"Unix socket", "127.0.0.1:"}) {
    const auto group = fresh_group();
    Rank rank(transport(), 0, 2, group, {});
    Rank other(transport(), 1, 2, group, {});
    const auto own = rank.address();
    auto address = tcp::Address::decode({own.data(), own.size()});
    EXPECT_FALSE(address.local_name.empty());
    // As where a container shares the network, but not the sockets' names.
    if (wanted != "Unix socket") address.local_name = "nobody listens here";
    const auto told = address.encode();
    const std::vector<std::vector<char>> addresses{{told.begin(), told.end()}, other.address()};
    rank.connect(addresses);
    other.connect(addresses);
    ASSERT_TRUE(wait_connected(rank, 1));
    ASSERT_TRUE(wait_connected(other, 0));
    EXPECT_TRUE(has_log(other, "rank 1 reached rank 0 at " + wanted));
  }
}

TEST(Tcp, AWrongHelloIsDroppedAtTheUnixSocketToo) {
  Rank rank(transport(), 0, 2, fresh_group(), {});
  const auto own = rank.address();
  const auto where = tcp::local_endpoint(tcp::Address::decode({own.data(), own.size()}).local_name);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(fd, where.data(), static_cast<socklen_t>(where.size())), 0);
  const Hello stranger = ask_as_rank_1(fresh_group());
  EXPECT_EQ(::send(fd, &stranger, sizeof(stranger), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(stranger)));
  char rest = 0;
  EXPECT_LE(::recv(fd, &rest, 1, 0), 0);
  ::close(fd);
  EXPECT_TRUE(has_log(rank, "another group"));
}

TEST(Tcp, MalformedAddressNamesItsRank) {
  std::vector<std::string> logs;
  const tandem_host_services services{
      sizeof(services), &logs,
      [](void* user, std::int32_t, const char* m) { static_cast<std::vector<std::string>*>(user)->emplace_back(m); },
      nullptr};
  const tandem_open_params params{sizeof(params), 1, 2, {'g'}, nullptr, 0, -1};
  tandem_transport_context* context = nullptr;
  ASSERT_EQ(transport().open(&services, &params, &context), TANDEM_OK);
  const void* const addresses[] = {"junk", "junk"};
  const std::uint64_t sizes[] = {4, 4};
  EXPECT_EQ(transport().connect(context, addresses, sizes), code(ErrorCode::invalid_argument));
  transport().close(context);
  ASSERT_EQ(logs.size(), 1U);
  EXPECT_NE(logs[0].find("rank 0"), std::string::npos) << logs[0];
}

TEST(Tcp, GoesOnTryingToReachARankAndCanBeClosedMeanwhile) {
  const auto group = fresh_group();
  auto early = std::make_unique<Rank>(transport(), 1, 2, group, conformance::Options{});
  std::vector<char> stale;
  {
    Rank gone(transport(), 0, 2, group, {});
    stale = gone.address();
  }
  // Nobody listens there.
  early->connect({stale, early->address()});
  char byte = 0;
  auto& pending = early->post({receive_from(0, 1, &byte, 1)});
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_EQ(early->connect_test(0), TANDEM_IN_PROGRESS);
  EXPECT_TRUE(has_log(*early, "did not reach rank 0"));
  const auto deadline = Deadline::after(seconds(20));
  while (!has_log(*early, "cannot reach rank 0 and goes on trying: ") && !deadline.passed())
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(has_log(*early, "cannot reach rank 0 and goes on trying: ")) << "whoever waits is not told why";
  EXPECT_EQ(pending.completed(), 0U);
  early->close();
  EXPECT_TRUE(pending.all_once_with(code(ErrorCode::aborted)));
}

}  // namespace
}  // namespace tandem
