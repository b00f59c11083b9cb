// A port that only those can reach who can reach the address it is at.
#pragma once

#include <cstdint>
#include <string>

namespace ditto {

// A listening socket at `host` (a name or an address of this machine; 0.0.0.0: all of its addresses) and `port`. Throws
// Error(distributed).
int listen_at(const std::string& host, std::uint16_t port);

}  // namespace ditto
