// Folders and files of checkpoints: names, durable replacement, checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ditto/error.h>

namespace ditto::checkpoint {

std::string checksum(std::span<const std::byte> bytes);  // XXH3-128 as 32 hex digits

// A file has a checksum for each chunk of so many bytes (the last is shorter), so that who reads a part of it checks
// that part. Smaller chunks: less is checked that is not needed, at most one chunk at each end of a run of bytes;
// larger ones: a shorter manifest, now 35 bytes a chunk.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

// The checksums of a file's chunks, from bytes that come in parts.
class ChunkHasher {
 public:
  ChunkHasher();
  ~ChunkHasher();
  void update(std::span<const std::byte> bytes);
  std::vector<std::string> finish();  // once, after the last byte

 private:
  void end_chunk();
  struct State;
  std::unique_ptr<State> state_;
};

// Before the name of a step that a run has gone back behind.
inline constexpr std::string_view kAbandoned = "abandoned-";

// A file as the system knows it: as long as it has the same mark nobody has written to it, or put another in its place.
struct FileMark {
  bool is_there = false;
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t seconds = 0, nanoseconds = 0;  // since it was written last
  friend bool operator==(const FileMark&, const FileMark&) = default;
};
FileMark mark_of(const std::string& path);

struct StepFolder {
  int64_t step;
  std::string name;  // "step_00000600"
};
std::string step_name(int64_t step);
std::optional<int64_t> step_of(const std::string& name);  // none: not a step's folder

struct Listing {
  std::vector<StepFolder> steps;        // ascending
  std::vector<std::string> unfinished;  // "step_00000700.tmp-1234": what a save or a removal that was killed left
};
Listing list(const std::string& folder);  // a folder that is not there is empty

// Hears of what could not be cleaned up, which is no reason to end a run: a line each.
using Warn = std::function<void(const std::string&)>;
// Does what may fail; an error goes to `warn`.
void or_warn(const Warn& warn, const std::function<void()>& work);

// All throw Error(checkpoint) with the path and the system's reason.
void make_folder(const std::string& path);
void sync_folder(const std::string& path);  // makes renames and new names in it durable
// `from` becomes `to`, at once and durably; what was at `to` is removed after.
void replace_folder(const std::string& from, const std::string& to, const Warn& warn);
// `from` becomes `to`, which is not there, and has the time of this.
void set_aside(const std::string& from, const std::string& to);
// The names of steps that were set aside in a folder, but for the last `kept` of them; of one time a later step is
// later.
std::vector<std::string> older_aside(const std::string& folder, size_t kept);
// A checkpoint's folder and nothing else: one that holds anything that no save writes is left, by an error that names
// it. Goes out of sight first, so that nobody meets half of it.
void remove_folder(const std::string& path);
// What saves and removals that were killed left behind.
void remove_unfinished(const std::string& folder, const Warn& warn);
// The hint: a symbolic link, or a file of one line where the file system has no links.
void point_latest(const std::string& folder, const std::string& name);

}  // namespace ditto::checkpoint
