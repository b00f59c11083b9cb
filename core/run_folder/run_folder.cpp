#include "core/run_folder/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/console/streams.h"
#include "core/formats/file.h"
#include "core/run_folder/utc.h"

namespace ditto::report {

namespace {

[[noreturn]] void fail(const std::string& path, std::string_view doing, int error) {
  throw Error(ErrorKind::config, path, fmt::format("cannot be {}: {}", doing, std::strerror(error)),
              "set run.output to a folder that can be written");
}

void make(const std::string& path) {
  if (const auto dangling = formats::said_of_dangling(path); !dangling.empty())
    throw Error(ErrorKind::config, path, dangling, "set run.output to a folder that can be written");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "made", error.value());
}

std::string made(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  make(path);
  return path;
}

}  // namespace

RunFolder::RunFolder(const std::string& path) : path_(made(path)), lock_(path_) {
  make(file("samples"));
  make(checkpoints());
  log_ = formats::Descriptor(::open(file("log.txt").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log_.get() < 0) fail(file("log.txt"), "opened", errno);
  formats::sync_file(path_, ErrorKind::config);
  formats::sync_parent(path_, ErrorKind::config);
}

void RunFolder::require_there() const {
  if (lock_.still_there()) return;
  throw Error(ErrorKind::checkpoint, path_, "was moved or removed while this run wrote it",
              "put it back, or start again elsewhere with --set run.output=FOLDER");
}

std::string RunFolder::sample_file(int64_t step, std::string_view suffix) const {
  return file(fmt::format("samples/step_{:08}{}", step, suffix));
}

bool RunFolder::has_recipe() const {
  std::error_code ignored;
  return std::filesystem::exists(file("run.toml"), ignored);
}

void RunFolder::write_recipe(std::string_view toml) {
  formats::write_file(file("run.toml"), std::as_bytes(std::span(toml)), ErrorKind::data, formats::Sync::fsync);
  formats::sync_parent(file("run.toml"), ErrorKind::data);
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
  std::string_view left = lines;
  while (!left.empty()) {
    const ssize_t done = ::write(log_.get(), left.data(), left.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) break;
    left.remove_prefix(static_cast<size_t>(done));
  }
  if (!left.empty() && !std::exchange(log_fails_, true))
    tell(fmt::format("warning: {} cannot be written ({}): what is said from here on may be missing there",
                     file("log.txt"), std::strerror(errno)));
}

}  // namespace ditto::report
