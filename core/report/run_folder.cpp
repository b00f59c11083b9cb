#include "core/report/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/file.h"

namespace ditto::report {

namespace {

[[noreturn]] void fail(const std::string& path, std::string_view doing, int error) {
  throw Error(ErrorKind::config, path, fmt::format("cannot be {}: {}", doing, std::strerror(error)),
              "set run.output to a folder that can be written");
}

void make(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "made", error.value());
}

std::string holder(int lock) {
  char text[256];
  const ssize_t size = ::pread(lock, text, sizeof text, 0);
  std::string out(text, size > 0 ? static_cast<size_t>(size) : 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out.empty() ? "another process" : out;
}

std::string own_name() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "?");
  return fmt::format("process {} on {}, since {}\n", ::getpid(), host, utc_text());
}

}  // namespace

std::string utc_text() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text, now.time_since_epoch().count() % 1000);
}

RunFolder::RunFolder(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  make(path_);
  take_lock();
  make(file("samples"));
  make(checkpoints());
  log_ = ::open(file("log.txt").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_ < 0) {
    const int error = errno;
    ::close(lock_);
    fail(file("log.txt"), "opened", error);
  }
}

RunFolder::~RunFolder() {
  ::close(log_);
  ::close(lock_);
}

void RunFolder::take_lock() {
  const std::string name = file(".lock");
  lock_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) fail(name, "opened", errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    const std::string text = own_name();
    if (::ftruncate(lock_, 0) == 0)
      (void)!::pwrite(lock_, text.data(), text.size(), 0);  // for people; the lock holds anyway
    return;
  }
  if (errno != EWOULDBLOCK) return;  // a file system without locks is no reason not to train
  const std::string who = holder(lock_);
  ::close(lock_);
  throw Error(ErrorKind::config, path_, "is being written by " + who,
              "wait for it, end it, or give this run another folder with --set run.output=runs/NAME");
}

std::string RunFolder::sample_file(int64_t step) const { return file(fmt::format("samples/step_{:08}.png", step)); }

bool RunFolder::has_recipe() const {
  std::error_code ignored;
  return std::filesystem::exists(file("run.toml"), ignored);
}

void RunFolder::write_recipe(std::string_view toml) {
  formats::write_file(file("run.toml"), std::as_bytes(std::span(toml)), ErrorKind::data, formats::Sync::fsync);
}

void RunFolder::log(std::string_view text) {
  const std::string time = utc_text();
  std::string lines;
  do {
    const size_t end = text.find('\n');
    lines += time + " " + shown(text.substr(0, end), text.size()) + "\n";
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  } while (!text.empty());
  const std::lock_guard lock(mutex_);
  (void)!::write(log_, lines.data(), lines.size());
}

}  // namespace ditto::report
