#include "core/formats/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ditto/text.h>

namespace ditto::formats {

namespace {

[[noreturn]] void fail(std::string_view path, ErrorKind kind, const char* doing) {
  throw Error(kind, path, std::string("cannot be ") + doing + ": " + std::strerror(errno));
}

void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path, ErrorKind kind) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path, kind, "written");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

}  // namespace

std::string said_of_dangling(const std::string& path) {
  std::error_code failed;
  const auto end = path.find_last_not_of('/');  // "link/" is asked of the folder, and not of the link
  const auto link = end == std::string::npos ? path : path.substr(0, end + 1);
  const auto to = std::filesystem::read_symlink(link, failed);
  if (failed || std::filesystem::exists(link, failed)) return {};
  return "is a link to \"" + shown(to.string()) + "\", and nothing is there";
}

void require_plain_path(const std::string& path, std::string_view where, bool takes_addresses) {
  if (path == "~" || path.starts_with("~/"))
    throw Error(ErrorKind::config, where,
                "\"" + shown(path) +
                    "\" begins with ~, which a shell alone makes the home folder, where it stands "
                    "unquoted at the head of a word",
                "write the folder out");
  const auto scheme = path.find("://");
  if (scheme != std::string::npos && path.find('/') > scheme && (!takes_addresses || path.starts_with("file:")))
    throw Error(ErrorKind::config, where,
                "\"" + shown(path) + "\" is an address, and a path on this machine is expected",
                path.starts_with("file:///") ? "write it as " + shown(path.substr(7)) : "name a path");
}

void require_there(const std::string& path, std::string_view remedy) {
  require_plain_path(path, path);
  if (std::filesystem::exists(path)) return;
  const auto dangling = said_of_dangling(path);
  throw Error(ErrorKind::config, path, dangling.empty() ? "is not there" : dangling, remedy);
}

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

std::shared_ptr<const RandomFile> RandomFile::open(const std::string& path, ErrorKind kind) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is refused, not waited for
  if (file.get() < 0 && errno == ENOENT)
    if (const auto dangling = said_of_dangling(path); !dangling.empty())
      throw Error(kind, path, dangling, "bring that back, or name what is meant");
  if (file.get() < 0) fail(path, kind, "opened");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, kind, "read");
  if (!S_ISREG(status.st_mode)) throw Error(kind, path, "is not a regular file", "check the path");
  return std::shared_ptr<const RandomFile>(
      new RandomFile(path, kind, std::move(file), nullptr, static_cast<std::uint64_t>(status.st_size)));
}

std::shared_ptr<const RandomFile> RandomFile::over(std::span<const std::byte> bytes, std::string_view where,
                                                   ErrorKind kind) {
  return std::shared_ptr<const RandomFile>(
      new RandomFile(std::string(where), kind, Descriptor(), bytes.data(), bytes.size()));
}

std::shared_ptr<const RandomFile> RandomFile::over(std::shared_ptr<const RemoteBytes> remote, std::string_view path) {
  std::shared_ptr<RandomFile> file(
      new RandomFile(std::string(path), ErrorKind::data, Descriptor(), nullptr, remote->size()));
  file->remote_ = std::move(remote);
  return file;
}

void RandomFile::require(std::uint64_t offset, std::uint64_t bytes, std::string_view where) const {
  if (offset > size_ || bytes > size_ - offset)
    throw Error(kind_, where.empty() ? path_ : where, "lies beyond the end of its file", "write the file again");
}

void RandomFile::read(std::uint64_t offset, std::span<std::byte> into, std::string_view where) const {
  if (where.empty()) where = path_;
  require(offset, into.size(), where);
  if (remote_) return remote_->read(offset, into, where);
  if (descriptor_.get() < 0) {
    std::copy_n(memory_ + offset, into.size(), into.begin());
    return;
  }
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(where, kind_, "read");
    if (got == 0) throw Error(kind_, where, "ends early: its file became shorter", "write the file again");
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::vector<std::byte> RandomFile::read(std::uint64_t offset, std::uint64_t bytes, std::string_view where) const {
  require(offset, bytes, where);  // before so much memory is asked for
  std::vector<std::byte> out(bytes);
  read(offset, out, where);
  return out;
}

std::string read_file(const std::string& path, ErrorKind kind, std::uint64_t most) {
  const auto file = RandomFile::open(path, kind);
  if (file->size() > most)
    throw Error(kind, path,
                "has " + std::to_string(file->size()) + " bytes; at most " + std::to_string(most) + " are expected",
                "check the path");
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_file(const std::string& path, std::span<const std::byte> bytes, ErrorKind kind, Sync sync) {
  const std::string beside = path + ".tmp-" + std::to_string(::getpid());
  Descriptor file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) fail(beside, kind, "created");
  try {
    write_all(file.get(), bytes, beside, kind);
    if (sync == Sync::fsync && ::fsync(file.get()) != 0) fail(beside, kind, "synced to disk");
    if (::close(file.release()) != 0) fail(beside, kind, "written");
    if (::rename(beside.c_str(), path.c_str()) != 0) fail(path, kind, "replaced");
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
}

void sync_file(const std::string& path, ErrorKind kind) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(path, kind, "opened");
  // Folders need no sync, and know none, on some file systems.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(path, kind, "synced to disk");
}

void sync_parent(const std::string& path, ErrorKind kind) {
  const auto parent = std::filesystem::path(path).parent_path();
  sync_file(parent.empty() ? "." : parent.string(), kind);
}

}  // namespace ditto::formats
