// What of a plugin's a thread runs, so that a crash there is not nameless.
#pragma once

#include <utility>

namespace ditto {

// While it lives, `what` ("model 'dit', being made") is what this thread does. `what` must live as long, and be one
// line.
class Doing {
 public:
  explicit Doing(const char* what) : before_(std::exchange(current_, what)) {}
  ~Doing() { current_ = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;
  static const char* current() { return current_; }  // null: nothing of a plugin's

 private:
  static thread_local constinit const char* current_;
  const char* before_;
};

// From now on a signal that ends the process for a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) in a thread that
// runs a plugin, and exit() called there, are said on standard error with what the thread did. The signal ends the
// process as before; after exit() the exit code is that of a plugin's failure. Not under a sanitizer, which tells more.
void name_crashes();

}  // namespace ditto
