// Folders and files of checkpoints: names, durable replacement, checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ditto/error.h>

namespace ditto::checkpoint {

// XXH3-128 over bytes that come in parts.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(std::span<const std::byte> bytes);
  std::string hex() const;  // 32 digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};
std::string checksum(std::span<const std::byte> bytes);

struct StepFolder {
  int64_t step;
  std::string name;  // "step_00000600"
};
std::string step_name(int64_t step);
std::optional<int64_t> step_of(const std::string& name);  // none: not a step's folder

struct Listing {
  std::vector<StepFolder> steps;        // ascending
  std::vector<std::string> unfinished;  // "step_00000700.tmp-1234"
};
Listing list(const std::string& folder);  // a folder that is not there is empty

// All throw Error(checkpoint) with the path and the system's reason.
void make_folder(const std::string& path);
void sync_folder(const std::string& path);  // makes renames and new names in it durable
// `from` becomes `to`, at once; what was at `to` is removed after.
void replace_folder(const std::string& from, const std::string& to);
// Goes out of sight first, so that nobody meets half of it.
void remove_folder(const std::string& path);
// What saves and removals that were killed left behind.
void remove_unfinished(const std::string& folder);
// The hint: a symbolic link, or a file of one line where the file system has no links.
void point_latest(const std::string& folder, const std::string& name);

}  // namespace ditto::checkpoint
