// Notices that another rank died, failed or hangs, and ends this one with a line that says which.
//
// Each rank has a thread that posts a heartbeat to the store, reads that of the next rank, and whether one has failed:
// the first rank that is found lost is written down once, by whoever finds it, and all end because of it.
#pragma once

#include <chrono>
#include <memory>

#include <ditto/error.h>

#include "core/ranks/launch.h"

namespace ditto {

struct WatchOptions {
  std::chrono::milliseconds timeout{600'000};  // to reach the store
  std::chrono::milliseconds hang{0};           // how long a rank may stand still in a step; 0: for ever
};

class RankWatch {
 public:
  explicit RankWatch(const RankInfo& rank);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // The ranks have met, so that the store is there: starts the threads; nothing with one rank. Throws
  // Error(distributed).
  void start(const WatchOptions& options);

  // What the training thread does now, told by itself. A step has the limit `hang`, except the first: kernels are
  // chosen and data arrives then. All else, which `what` names ("validation"), may take its time.
  void begin_step();
  void begin(const char* what);    // a literal
  void goes_on(const char* what);  // of what was begun: its name from now on

  // This rank ends because of `error`. If it is its own, it is said here, once for all ranks that fail alike, and
  // written to TORCHELASTIC_ERROR_FILE; if a peer was lost, it is found out which, in at most 4 s. Returns the exit
  // code: the error's, 6 where a peer was lost. The process ends 4 s later even if destructors wait for lost peers.
  // Before `start` the ranks meet for it at the store, for at most 10 s: so a mistake in the recipe, which all find, is
  // said once, and what one lacks ends the others. With one rank it throws `error`.
  int fail(const Error& error);
  // All work is done. Where this rank hosts the store it waits until the others need it no more.
  void finish();

 private:
  class Impl;
  const RankInfo rank_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ditto
