// The folder of one run, for as long as the run lasts.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "core/formats/file.h"
#include "core/run_folder/run_lock.h"

namespace ditto::report {

// Opened by the one process of a run that writes (rank 0). Holds a lock that goes with the process, however it ends.
class RunFolder {
 public:
  // Makes the folder, samples/ and checkpoints/. Throws Error(config) with the system's reason if it cannot, and if
  // another process holds the folder, naming it.
  explicit RunFolder(const std::string& path);
  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string checkpoints() const { return file("checkpoints"); }
  std::string sample_file(int64_t step, std::string_view suffix) const;  // samples/step_00000600.png
  bool has_recipe() const;                                               // a run was here before
  void require_there() const;  // Error(checkpoint): the folder was moved or removed meanwhile

  void write_recipe(std::string_view toml);  // run.toml, at once and on the disk; Error(data)

  // Adds each line of `text` to log.txt with the time in front (UTC, milliseconds). Never throws: a full disk must not
  // end a run for its log's sake; the first time, standard error hears of it. Safe from several threads.
  void log(std::string_view text);

 private:
  std::string path_;
  RunLock lock_;
  formats::Descriptor log_;
  bool log_fails_ = false;
  std::mutex mutex_;
};

}  // namespace ditto::report
