#include "core/plugin/doing.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <ditto/error.h>
#include <ditto/plugin.h>

namespace ditto {

namespace {

// Made and written by calls that are safe in a signal's handler, and at once, so that lines do not mix.
class Line {
 public:
  Line& add(std::string_view text) {
    const size_t count = std::min(text.size(), sizeof text_ - 1 - size_);
    std::memcpy(text_ + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& add(int number) {
    char digits[12];
    return add({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
  }
  void write() {
    text_[size_++] = '\n';
    (void)!::write(STDERR_FILENO, text_, size_);
  }

 private:
  char text_[2048];
  size_t size_ = 0;
};

void on_fault(int signal) {
  if (const char* what = Doing::current()) {
    const char* name = sigdescr_np(signal);
    Line().add("error: signal ").add(signal).add(" (").add(name ? name : "?").add("): ").add(what).write();
  }
  ::raise(signal);  // is delivered when this returns, and does now what it would have done
}

void on_exit() {
  const char* what = Doing::current();
  if (!what) return;
  Line().add("error: the process was ended by a call of exit(): ").add(what).write();
  ::_exit(Error::exit_code(ErrorKind::plugin));
}

}  // namespace

thread_local constinit const char* Doing::current_ = nullptr;

void name_crashes() {
  if (build_mode() & (kBuildAddressSanitizer | kBuildThreadSanitizer)) return;
  static char stack_for_handlers[64 * 1024];  // a stack that overflowed has no room for them
  stack_t stack{};
  stack.ss_sp = stack_for_handlers;
  stack.ss_size = sizeof stack_for_handlers;
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_fault;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
  std::atexit(on_exit);
}

}  // namespace ditto
