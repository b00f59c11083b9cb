// How far this process is with what it has asked of its peers. By it a watchdog tells a rank that hangs from the ranks
// that wait for it. One for the process, since a process is what is lost or hangs.
#pragma once

#include <atomic>
#include <cstdint>

#include <ditto/visibility.h>

namespace ditto {

// Of the groups of a mesh whose traffic is counted; written by the thread that waits, read by any.
struct PeerCalls {
  std::atomic<int64_t> begun{0};  // results that were waited for
  std::atomic<int64_t> done{0};   // and that came, or failed to
  bool waiting() const { return begun.load() != done.load(); }
};
DITTO_API PeerCalls& peer_calls();

}  // namespace ditto
