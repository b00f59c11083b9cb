// SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask a run to stop: it finishes its step, saves, and ends with 75.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

#include "core/ranks/launch.h"

namespace ditto {

inline constexpr int kStoppedBySignal = 75;  // exit code: to be started again, nothing is lost

// Three states: nothing is asked; a stop is asked; the end is asked. The first signal leads to the second state, and
// only a second SIGINT to the third: SIGTERM comes twice wherever it is sent to a process and to its group. So does
// SIGINT then, which is why one that follows at once counts as the same.
class StopRequest {
 public:
  enum class Answer {
    nothing,
    stop,  // the first signal, or the first SIGINT: to be said
    end,   // at once
  };
  Answer take(int signal, int64_t now_ms);      // may be called by a signal's handler
  int signal() const { return first_.load(); }  // 0: nothing is asked

 private:
  static constexpr int64_t kSameSignal_ms = 500, kNever = -1;
  std::atomic<int> first_{0};
  std::atomic<int64_t> interrupted_{kNever};
};

// From now on this process takes those signals as a StopRequest, except for what it was started to ignore (nohup; the
// background jobs of a script). Rank 0 says at once what will happen, and the end is SIGINT's usual one. In a rank of
// --local-ranks the starting process answers: such a rank says nothing, and the end is not its to decide; it was
// started with those signals blocked, and takes what came meanwhile. A reader of its output that is gone (a `tee` that
// heard the same Ctrl-C) ends such a process no more.
void answer_stop_signals(const RankInfo& rank);
// The signal that asked for the stop, or 0.
int stop_signal();
// Those of the signals that this process answers: none before answer_stop_signals.
sigset_t answered_stop_signals();
// In a child that was forked for a moment: they end it as usual, and its parent answers.
void leave_stop_signals_to_parent();

}  // namespace ditto
