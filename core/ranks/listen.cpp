#include "core/ranks/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <ditto/error.h>

namespace ditto {

namespace {

constexpr int kBacklog = 2048;
constexpr const char* kAnother =
    "set MASTER_ADDR to an address of rank 0's machine in the ranks' network; for rank 0 alone 0.0.0.0 is all of them";

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr) >> 24 == 127;
}

// -1 with errno.
int listen_at(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return -1;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

int listen_at(const std::string& host, std::uint16_t port, Reach reach) {
  const auto place = host + ":" + std::to_string(port);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0)
    throw Error(ErrorKind::distributed, place, std::string("is no address: ") + ::gai_strerror(error), kAnother);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = list; address; address = address->ai_next) {
    if (reach == Reach::other_machines && is_loopback(*address)) continue;
    if (const int fd = listen_at(*address); fd >= 0) return fd;
    if (error == 0 || errno != EADDRNOTAVAIL) error = errno;
  }
  if (error == 0)
    throw Error(ErrorKind::distributed, place,
                "is this machine's loopback here, where the ranks of other machines cannot reach rank 0", kAnother);
  throw Error(ErrorKind::distributed, place, std::string("rank 0 cannot listen there: ") + std::strerror(error),
              error == EADDRINUSE ? "another process does: set MASTER_PORT to a free port" : kAnother);
}

}  // namespace ditto
