// One writer a run's folder.
#pragma once

#include <optional>
#include <string>

#include "core/formats/file.h"

namespace ditto::report {

// Held by a process until it ends, however it ends. What is locked is the folder itself, which nobody can swap for
// another while it is in use, and the file .lock in it, which says who holds it (and is all that network file systems
// lock between machines).
class RunLock {
 public:
  // Throws Error(config) naming who holds it.
  explicit RunLock(std::string folder);
  // Whether the folder's name still leads to the folder that is locked.
  bool still_there() const;

 private:
  std::string folder_;
  formats::Descriptor folder_lock_, file_lock_;
};

// The lock of the run in whose folder `path` lies: beside its run.toml, or in its checkpoints. None: it lies in no run.
std::optional<RunLock> lock_run_around(const std::string& path);

}  // namespace ditto::report
