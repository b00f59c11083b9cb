#include "core/run_folder/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ditto/error.h>

#include "core/run_folder/utc.h"

namespace ditto::report {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFile = ".lock";

std::string holder(const std::string& file) {
  const formats::Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char text[256];
  const ssize_t size = ::read(descriptor.get(), text, sizeof text);
  std::string out(text, size > 0 ? static_cast<size_t>(size) : 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out.empty() ? "another process" : out;
}

std::string own_name() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "?");
  return fmt::format("process {} on {}, since {}\n", ::getpid(), host, utc_text());
}

formats::Descriptor open_or_fail(const std::string& path, int flags) {
  formats::Descriptor opened(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (opened.get() >= 0) return opened;
  throw Error(ErrorKind::config, path, fmt::format("cannot be opened: {}", std::strerror(errno)),
              "set run.output to a folder that can be written");
}

// A file system without locks is no reason not to train.
bool is_held(const formats::Descriptor& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

RunLock::RunLock(std::string folder) : folder_(std::move(folder)) {
  const std::string file = folder_ + "/" + kFile;
  const auto refuse = [&] {
    throw Error(ErrorKind::config, folder_, "is being written by " + holder(file),
                "wait for it, end it, or give this run another folder with --set run.output=runs/NAME");
  };
  folder_lock_ = open_or_fail(folder_, O_RDONLY | O_DIRECTORY);
  if (is_held(folder_lock_)) refuse();
  file_lock_ = open_or_fail(file, O_RDWR | O_CREAT);
  if (is_held(file_lock_)) refuse();
  const std::string text = own_name();
  if (::ftruncate(file_lock_.get(), 0) == 0)
    (void)!::pwrite(file_lock_.get(), text.data(), text.size(), 0);  // for people; the lock holds anyway
}

bool RunLock::still_there() const {
  struct stat locked {
  }, named{};
  return ::fstat(folder_lock_.get(), &locked) == 0 && ::stat(folder_.c_str(), &named) == 0 &&
         locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

std::optional<RunLock> lock_run_around(const std::string& path) {
  fs::path place = fs::absolute(path).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();  // "imported/"
  for (const fs::path& folder : {place.parent_path(), place.parent_path().parent_path()})
    if (fs::exists(folder / kFile) || fs::exists(folder / "run.toml")) return RunLock(folder.string());
  return std::nullopt;
}

}  // namespace ditto::report
