// A port that only those can reach who can reach the address it is at.
#pragma once

#include <cstdint>
#include <string>

namespace ditto {

enum class Reach { this_machine, other_machines };

// A listening socket at `host` (a name or an address of this machine; 0.0.0.0: all of its addresses) and `port`. Where
// ranks of other machines are to reach it, the loopback is none. Throws Error(distributed).
int listen_at(const std::string& host, std::uint16_t port, Reach reach);

}  // namespace ditto
