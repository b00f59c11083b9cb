// What ranks tell one another beside the training, in the store: heartbeats, and which rank failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/ranks/launch.h"

namespace ditto {

struct Heartbeat {
  enum State : char {
    busy = 'b',      // with something that may take its time
    step = 's',      // in a step, and computing
    waiting = 'w',   // in a step, for its peers
    stranded = 'l',  // it lost a peer
    done = 'd',
  };
  int64_t beat = 0;      // grows while the process lives
  int64_t progress = 0;  // grows while its training thread gets on
  State state = busy;
  std::string doing;  // "validation"
};

struct RankFailure {
  int rank = 0;
  enum Kind : char { failed = 'f', lost = 'l', hangs = 'h' } kind = lost;
  std::string text;  // failed: its error; otherwise what was seen of it
  int by = -1;       // the rank that wrote it down
};
std::string to_text(const RankFailure& failure);  // "rank 2 was lost"

// A connection of its own to the run's store, so that nobody who waits in another is in the way. Every method throws
// what c10d throws when the store is gone.
class RankStatus {
 public:
  RankStatus(const RankInfo& rank, std::chrono::milliseconds timeout);

  void post(const Heartbeat& heartbeat);
  std::optional<Heartbeat> heartbeat_of(int rank);  // nothing: it has never been here
  // Writes `failure` down as this rank's, if it is the first. Returns the one that is there.
  RankFailure claim(const RankFailure& failure);
  std::optional<RankFailure> failure();
  void leave();         // this rank has read the failure, or is done
  int64_t have_left();  // how many have

 private:
  int rank_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// The run's store, at rank.master_address; rank 0 hosts it unless the launcher does. Throws Error(distributed).
c10::intrusive_ptr<c10d::Store> connect_to_store(const RankInfo& rank, std::chrono::milliseconds timeout);

}  // namespace ditto
