#include "core/checkpoint/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/formats/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnfinished = ".tmp-";

[[noreturn]] void fail(const std::string& path, const std::string& doing, int code) {
  throw Error(ErrorKind::checkpoint, path, "cannot be " + doing + ": " + std::strerror(code));
}

std::string hex_of(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::string beside(const std::string& path) { return path + kUnfinished + std::to_string(::getpid()); }

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void rename_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "made by renaming " + from, errno);
}

// Both names keep a whole folder throughout, where the file system can do that.
void swap_folders(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(b, "replaced by " + a, errno);
  const std::string old = beside(b) + "-old";
  rename_to(b, old);
  rename_to(a, b);
  rename_to(old, a);
}

}  // namespace

std::string checksum(std::span<const std::byte> bytes) { return hex_of(XXH3_128bits(bytes.data(), bytes.size())); }

struct ChunkHasher::State {
  XXH3_state_t xxh;
  uint64_t bytes = 0;  // of the chunk that has begun
  std::vector<std::string> chunks;
};

ChunkHasher::ChunkHasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
ChunkHasher::~ChunkHasher() = default;

void ChunkHasher::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t taken = std::min<uint64_t>(bytes.size(), kChunkBytes - state_->bytes);
    XXH3_128bits_update(&state_->xxh, bytes.data(), taken);
    state_->bytes += taken;
    bytes = bytes.subspan(taken);
    if (state_->bytes == kChunkBytes) end_chunk();
  }
}

void ChunkHasher::end_chunk() {
  state_->chunks.push_back(hex_of(XXH3_128bits_digest(&state_->xxh)));
  state_->bytes = 0;
  XXH3_128bits_reset(&state_->xxh);
}

std::vector<std::string> ChunkHasher::finish() {
  if (state_->bytes > 0) end_chunk();
  return std::move(state_->chunks);
}

std::string step_name(int64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "step_%08lld", static_cast<long long>(step));
  return text;
}

std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 18) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t step = std::stoll(digits);
  if (step_name(step) != name) return std::nullopt;  // one name a step
  return step;
}

Listing list(const std::string& folder) {
  Listing result;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  if (error == std::errc::no_such_file_or_directory) return result;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto step = step_of(name)) result.steps.push_back({*step, name});
    if (name.find(kUnfinished) != std::string::npos) result.unfinished.push_back(name);
  }
  if (error) fail(folder, "read", error.value());
  std::sort(result.steps.begin(), result.steps.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  std::sort(result.unfinished.begin(), result.unfinished.end());
  return result;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(path, "created", error.value());
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "opened", errno);
  const int code = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (code != 0 && code != EINVAL) fail(path, "synced to disk", code);  // EINVAL: folders need no sync here
}

void replace_folder(const std::string& from, const std::string& to) {
  if (!fs::exists(fs::symlink_status(to))) {
    rename_to(from, to);
    sync_folder(parent_of(to));
    return;
  }
  swap_folders(from, to);
  sync_folder(parent_of(to));
  remove_folder(from);
}

void remove_folder(const std::string& path) {
  const std::string hidden = path.find(kUnfinished) == std::string::npos ? beside(path) : path;
  if (hidden != path) rename_to(path, hidden);
  std::error_code error;
  fs::remove_all(hidden, error);
  if (error) fail(hidden, "removed", error.value());
}

void remove_unfinished(const std::string& folder) {
  for (const std::string& name : list(folder).unfinished) remove_folder((fs::path(folder) / name).string());
}

void point_latest(const std::string& folder, const std::string& name) {
  const std::string link = (fs::path(folder) / "latest").string(), fresh = beside(link);
  ::unlink(fresh.c_str());
  if (::symlink(name.c_str(), fresh.c_str()) == 0) {
    rename_to(fresh, link);
  } else if (errno == EPERM || errno == ENOTSUP) {
    const std::string line = name + "\n";
    formats::write_file(link, std::as_bytes(std::span(line)), ErrorKind::checkpoint);
  } else {
    fail(fresh, "created", errno);
  }
  sync_folder(folder);
}

}  // namespace ditto::checkpoint
