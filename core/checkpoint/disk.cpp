#include "core/checkpoint/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "core/formats/file.h"
#include "core/formats/text/json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kUnfinished = ".tmp-", kOld = "-old", kLatest = "latest";

[[noreturn]] void fail(const std::string& path, const std::string& doing, int code) {
  throw Error(ErrorKind::checkpoint, path, "cannot be " + doing + ": " + std::strerror(code));
}

std::string hex_of(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::string beside(const std::string& path) { return path + std::string(kUnfinished) + std::to_string(::getpid()); }

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
  const std::string old = beside(b) + std::string(kOld);
  rename_to(b, old);
  rename_to(a, b);
  rename_to(old, a);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "step_00000600" of "step_00000600.tmp-1234" and of "step_00000600.tmp-1234-old"; "": it is no such name.
std::string_view before_unfinished(std::string_view name) {
  if (name.ends_with(kOld)) name.remove_suffix(kOld.size());
  const size_t at = name.rfind(kUnfinished);
  if (at == name.npos || !is_number(name.substr(at + kUnfinished.size()))) return {};
  return name.substr(0, at);
}

// Of "abandoned-step_00000600" and "abandoned-step_00000600-2"; none: it is no such name.
std::optional<int64_t> aside_step_of(std::string_view name) {
  if (!name.starts_with(kAbandoned)) return std::nullopt;
  name.remove_prefix(kAbandoned.size());
  if (const size_t dash = name.rfind('-'); dash != name.npos && is_number(name.substr(dash + 1)))
    name = name.substr(0, dash);
  return step_of(std::string(name));
}

// Other names are somebody else's, however much they look alike.
bool is_leftover(const std::string& name) {
  const std::string_view of = before_unfinished(name);
  return of == kLatest || step_of(std::string(of)) || aside_step_of(of);
}

// Whether a save writes a file of this name.
bool is_part(std::string_view name) {
  if (const auto whole = before_unfinished(name); !whole.empty()) name = whole;
  constexpr std::array kTexts{"index.json", "state.json", "recipe.toml", "manifest.json"};
  if (std::find(kTexts.begin(), kTexts.end(), name) != kTexts.end()) return true;
  constexpr std::string_view kEnding = ".safetensors";
  const size_t dash = name.find('-');
  if (dash == name.npos || !name.ends_with(kEnding)) return false;
  const auto section = name.substr(0, dash);
  return (section == "model" || section == "ema" || section == "optimizer") &&
         is_number(name.substr(dash + 1, name.size() - kEnding.size() - dash - 1));
}

// Why a folder is not to be removed: the name of what no save has put there; "": nothing.
std::string foreign_part(const std::string& path) {
  if (!fs::is_directory(fs::symlink_status(path))) return ".";
  for (const auto& item : fs::directory_iterator(path))
    if (!fs::is_regular_file(item.symlink_status()) || !is_part(item.path().filename().string()))
      return item.path().filename().string();
  return {};
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

FileMark mark_of(const std::string& path) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return {};
  return {true,
          static_cast<uint64_t>(now.st_dev),
          static_cast<uint64_t>(now.st_ino),
          static_cast<uint64_t>(now.st_size),
          static_cast<int64_t>(now.st_mtim.tv_sec),
          static_cast<int64_t>(now.st_mtim.tv_nsec)};
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
    if (is_leftover(name)) result.unfinished.push_back(name);
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

void or_warn(const Warn& warn, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (warn) warn(formats::plain_reason(error));
  }
}

void replace_folder(const std::string& from, const std::string& to, const Warn& warn) {
  if (!fs::exists(fs::symlink_status(to))) {
    rename_to(from, to);
    sync_folder(parent_of(to));
    return;
  }
  swap_folders(from, to);
  sync_folder(parent_of(to));
  or_warn(warn, [&] { remove_folder(from); });
}

void set_aside(const std::string& from, const std::string& to) {
  rename_to(from, to);
  (void)!::utimensat(AT_FDCWD, to.c_str(), nullptr, 0);  // only says which are removed first
  sync_folder(parent_of(to));
}

std::vector<std::string> older_aside(const std::string& folder, size_t kept) {
  std::vector<std::tuple<fs::file_time_type, int64_t, std::string>> all;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (const auto step = aside_step_of(name)) all.emplace_back(fs::last_write_time(it->path(), ignored), *step, name);
  }
  std::sort(all.begin(), all.end());
  all.resize(all.size() - std::min(all.size(), kept));
  std::vector<std::string> names;
  for (auto& [time, step, name] : all) names.push_back(std::move(name));
  return names;
}

void remove_folder(const std::string& path) {
  if (const std::string other = foreign_part(path); !other.empty())
    throw Error(ErrorKind::checkpoint, path, "is left: no save has made '" + other + "' in it",
                "move that elsewhere and remove the rest");
  const bool is_hidden = !before_unfinished(fs::path(path).filename().string()).empty();
  const std::string hidden = is_hidden ? path : beside(path);
  if (!is_hidden) rename_to(path, hidden);
  std::error_code error;
  fs::remove_all(hidden, error);
  if (error) fail(hidden, "removed", error.value());
}

void remove_unfinished(const std::string& folder, const Warn& warn) {
  for (const std::string& name : list(folder).unfinished) {
    const std::string path = (fs::path(folder) / name).string();
    or_warn(warn, [&] {
      if (before_unfinished(name) != kLatest) return remove_folder(path);
      if (::unlink(path.c_str()) != 0) fail(path, "removed", errno);
    });
  }
}

void point_latest(const std::string& folder, const std::string& name) {
  const std::string link = (fs::path(folder) / kLatest).string(), fresh = beside(link);
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
