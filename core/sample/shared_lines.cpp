#include "core/sample/shared_lines.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <ditto/error.h>

namespace ditto {

namespace {

// Between machines too: network file systems read a file's size anew once it is locked. One without locks is no reason
// not to sample: a short append goes in whole.
class Locked {
 public:
  explicit Locked(int file) : file_(file) {
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) continue;
  }
  ~Locked() { ::flock(file_, LOCK_UN); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int file_;
};

[[noreturn]] void fail(const std::string& path, const char* what, int code) {
  throw Error(ErrorKind::data, path, std::string("cannot be ") + what + ": " + std::strerror(code));
}

}  // namespace

void SharedLines::append(std::string_view lines) {
  if (file_.get() < 0)
    file_ = formats::Descriptor(::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (file_.get() < 0) fail(path_, "opened", errno);
  const Locked locked(file_.get());
  struct stat before {};
  if (::fstat(file_.get(), &before) != 0) fail(path_, "read", errno);
  char last = '\n';
  if (before.st_size > 0) (void)!::pread(file_.get(), &last, 1, before.st_size - 1);
  std::string text = last == '\n' ? "" : "\n";  // a torn line ends
  text += lines;
  for (std::string_view left = text; !left.empty();) {
    const ssize_t done = ::write(file_.get(), left.data(), left.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      const int why = errno;
      (void)!::ftruncate(file_.get(), before.st_size);
      fail(path_, "written", why);
    }
    left.remove_prefix(static_cast<size_t>(done));
  }
}

int64_t read_lines(const std::string& path, const std::function<void(const nlohmann::json&)>& take) {
  std::ifstream file(path, std::ios::binary);
  int64_t damaged = 0;
  for (std::string line; std::getline(file, line);) {
    const auto one = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (one.is_object())
      take(one);
    else
      ++damaged;
  }
  return damaged;
}

}  // namespace ditto
