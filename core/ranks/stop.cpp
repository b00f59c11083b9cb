#include "core/ranks/stop.h"

#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <initializer_list>
#include <string_view>

#include <sys/uio.h>

namespace ditto {

namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

// Of this process. A handler has nothing else to go by.
StopRequest request;
std::atomic<bool> speaks{true}, is_led{false}, on_terminal{false};

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

std::string_view name_of(int signal) {
  switch (signal) {
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGHUP: return "SIGHUP";
    default: return "SIGUSR1";
  }
}

// By one system call; below what a terminal shows in its last line.
void say(std::initializer_list<std::string_view> parts) {
  if (!speaks) return;
  iovec list[8];
  int count = 0;
  if (on_terminal) list[count++] = {const_cast<char*>("\n"), 1};
  for (const auto part : parts) list[count++] = {const_cast<char*>(part.data()), part.size()};
  [[maybe_unused]] const auto written = ::writev(STDERR_FILENO, list, count);
}

void on_signal(int signal) {
  const int kept = errno;
  switch (request.take(signal, now_ms())) {
    case StopRequest::Answer::nothing: break;
    case StopRequest::Answer::stop:
      say({name_of(signal), ": stops when the step under way is done and saved; the same command goes on from there",
           signal == SIGINT ? " (Ctrl-C again: ends at once, unsaved)\n" : "\n"});
      break;
    case StopRequest::Answer::end:
      if (is_led) break;
      say({"SIGINT again: ends at once, without saving; the checkpoint before stands\n"});
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);  // once this handler returns
  }
  errno = kept;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

bool is_answered(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == on_signal;
}

sigset_t set_of(bool (*holds)(int)) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals)
    if (holds(signal)) sigaddset(&set, signal);
  return set;
}

}  // namespace

StopRequest::Answer StopRequest::take(int signal, int64_t now_ms) {
  int nothing = 0;
  const bool is_first = first_.compare_exchange_strong(nothing, signal);
  if (signal != SIGINT) return is_first ? Answer::stop : Answer::nothing;
  int64_t before = kNever;
  if (interrupted_.compare_exchange_strong(before, now_ms)) return Answer::stop;
  return now_ms - before > kSameSignal_ms ? Answer::end : Answer::nothing;
}

void answer_stop_signals(const RankInfo& rank) {
  is_led = rank.launcher == "local ranks";
  speaks = rank.rank == 0 && !is_led;
  on_terminal = ::isatty(STDERR_FILENO) == 1;
  ::signal(SIGPIPE, SIG_IGN);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  action.sa_mask = set_of([](int) { return true; });
  for (const int signal : kStopSignals)
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  const auto answered = answered_stop_signals();
  if (is_led) ::sigprocmask(SIG_UNBLOCK, &answered, nullptr);
}

int stop_signal() { return request.signal(); }

sigset_t answered_stop_signals() { return set_of(is_answered); }

void leave_stop_signals_to_parent() {
  for (const int signal : kStopSignals)
    if (is_answered(signal)) ::signal(signal, SIG_DFL);
}

}  // namespace ditto
