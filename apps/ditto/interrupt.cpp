#include "apps/ditto/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace ditto {

namespace {

// Of this process. A handler has nothing else to go by.
std::atomic<const char*> last_words{nullptr};

void on_interrupt(int signal) {
  if (::isatty(STDERR_FILENO)) (void)!::write(STDERR_FILENO, "\n", 1);  // below the line of progress
  const char* line = last_words;
  (void)!::write(STDERR_FILENO, line, std::strlen(line));
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // once this handler returns: who started us sees how it ended
}

}  // namespace

void say_when_interrupted(const char* line) {
  last_words = line;
  if (::signal(SIGINT, on_interrupt) == SIG_IGN) ::signal(SIGINT, SIG_IGN);
}

}  // namespace ditto
