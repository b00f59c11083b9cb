#include "core/console/streams.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <streambuf>
#include <string>

#include <ditto/error.h>
#include <ditto/plugin.h>
#include <ditto/text.h>

namespace ditto::report {

namespace {

// Standard output line by line. The C library's own forgets why a write failed, and std::cout that one did.
class Output final : public std::streambuf {
 public:
  int error() const { return error_; }  // of the first write that failed; 0: none did

 private:
  int_type overflow(int_type letter) override {
    if (letter == traits_type::eof()) return traits_type::not_eof(letter);
    const char one = traits_type::to_char_type(letter);
    xsputn(&one, 1);
    return letter;
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    waiting_.append(text, static_cast<size_t>(size));
    if (waiting_.ends_with('\n') || waiting_.size() > kMostWaiting) sync();
    return size;
  }
  int sync() override {
    std::string_view left = waiting_;
    while (error_ == 0 && !left.empty()) {
      const ssize_t done = ::write(STDOUT_FILENO, left.data(), left.size());
      if (done >= 0) left.remove_prefix(static_cast<size_t>(done));
      if (done < 0 && errno != EINTR) error_ = errno;
    }
    waiting_.clear();
    return 0;
  }

  static constexpr size_t kMostWaiting = 1 << 16;
  std::string waiting_;
  int error_ = 0;
};

Output& output() {
  static auto* const only = new Output;  // std::cout may be used until the process is gone
  return *only;
}

}  // namespace

void prepare_streams() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  for (int stream = 0; stream <= 2; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // Gets the lowest free number. What is printed to a closed standard output is lost, and that is an error.
    const int opened = ::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (opened > 2) ::close(opened);
  }
  std::cout.rdbuf(&output());
}

void end_without_libraries() {
  if (build_mode() & (kBuildAddressSanitizer | kBuildThreadSanitizer)) return;
  for (const char* guest : {"LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH"})
    if (std::getenv(guest)) return;
  const auto end = [](int code, void*) {
    std::cout.flush();
    std::fflush(nullptr);
    ::_exit(code);
  };
  ::on_exit(end, nullptr);
}

void require_printed() {
  std::cout.flush();
  const int error = output().error();
  if (error == 0) return;
  throw Error(ErrorKind::data, "standard output",
              error == EBADF ? std::string("is closed, and what was to be printed is lost")
                             : std::string("cannot be written: ") + std::strerror(error));
}

int terminal_width(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void tell(std::string_view line) { write_text(STDERR_FILENO, shown(line, kSentenceShown) + "\n"); }

bool write_text(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno == EAGAIN;
    text.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

}  // namespace ditto::report
