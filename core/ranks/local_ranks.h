// `--local-ranks N`: this program N times on this machine, as the ranks of one run.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ditto {

struct LocalRanks {
  int count = 1;
  std::vector<std::string> arguments;  // of each rank, without the program's name
  // What a rank runs: its exit code, given the program's name and the arguments. It begins as a program does: with a
  // fork of this process, in which nothing has been computed. None, or where this process has other threads: it is
  // this program that is started anew, from /proc/self/exe, and reads its libraries once more.
  std::function<int(int count, char** arguments)> main = {};
  // Finds out, in a process of its own, whether the ranks can start: 0, or an exit code of which it has said the cause.
  std::function<int()> rehearsal = {};
  std::chrono::milliseconds patience{3000};  // after a failure: the other ranks find it by themselves, and say so
  std::chrono::milliseconds grace{4000};     // after a failure: those that did not end when asked are ended
};

// Starts the ranks with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set and the
// processors shared out (OMP_NUM_THREADS, unless it is set). Rank 0 keeps stdout, all keep stderr. Waits for them; a
// stop that this process is asked for and answers (core/ranks/stop.h) is passed on to them. When one fails, the others
// are ended within 5 s; when this process dies, they die. Returns the exit code: 0; 75 if ranks were stopped by a
// signal, or before there were any; the rehearsal's; that of the first rank that failed by itself; or that of
// Error(distributed) for a rank that was killed. To be called before the process has other threads. Throws
// Error(config) where ranks were already started by a launcher, and Error(distributed) if a process cannot be started.
int run_local_ranks(const LocalRanks& ranks);

// `arguments` without "--local-ranks N" and "--local-ranks=N".
std::vector<std::string> without_local_ranks(const std::vector<std::string>& arguments);

}  // namespace ditto
