// Claim (failures): Where rank 0 listens: at the address it was given, and nowhere else.
#include "core/ranks/listen.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/files.h"

using ditto::ErrorKind;
using ditto::listen_at;
using ditto::Reach;
using ditto::test::contains;
using ditto::test::error_of;

namespace {

// A listening socket, closed at the end, and where it is.
struct Socket {
  explicit Socket(const std::string& host, std::uint16_t port = 0) : fd(listen_at(host, port, Reach::this_machine)) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    place = ::inet_ntoa(address.sin_addr);
    this->port = ntohs(address.sin_port);
  }
  ~Socket() { ::close(fd); }
  int fd;
  std::string place;
  std::uint16_t port;
};

std::string listen_refusal(const std::string& host, std::uint16_t port = 0, Reach reach = Reach::this_machine) {
  return error_of(ErrorKind::distributed, [&] { ::close(listen_at(host, port, reach)); });
}

}  // namespace

TEST_CASE("a socket listens at the address it was given alone") {
  CHECK(Socket("127.0.0.1").place == "127.0.0.1");
  CHECK(Socket("127.0.0.3").place == "127.0.0.3");
  CHECK(Socket("0.0.0.0").place == "0.0.0.0");
}

TEST_CASE("what cannot be listened at is refused with what to do") {
  CHECK(contains(listen_refusal("192.0.2.1"), "192.0.2.1:0: rank 0 cannot listen there: "));
  CHECK(contains(listen_refusal("192.0.2.1"), "0.0.0.0"));
  CHECK(contains(listen_refusal("no such host"), "is no address"));
  const Socket taken("127.0.0.1");
  CHECK(contains(listen_refusal("127.0.0.1", taken.port), "set MASTER_PORT to a free port"));
}

TEST_CASE("with ranks on other machines the loopback is no address") {
  CHECK(contains(listen_refusal("127.0.0.1", 0, Reach::other_machines), "cannot reach rank 0"));
  CHECK(contains(listen_refusal("localhost", 0, Reach::other_machines), "cannot reach rank 0"));
  CHECK(listen_refusal("0.0.0.0", 0, Reach::other_machines).empty());
}
