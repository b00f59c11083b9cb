// What a training run says and writes down beside its checkpoints: its folder with run.toml and log.txt, metrics,
// TensorBoard's events, receipts and samples, and its progress. Rank 0 alone writes; on all others nothing happens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/console/progress.h"
#include "core/formats/picture/picture.h"
#include "core/receipts/receipt_file.h"
#include "core/run_folder/metrics.h"
#include "core/run_folder/run_folder.h"
#include "core/run_folder/tensorboard.h"

namespace ditto {

class RunLog {
 public:
  // Both outlive it.
  RunLog(const Recipe& recipe, const Mesh& mesh) : recipe_(recipe), mesh_(mesh) {}

  // Makes the folder, takes its lock and opens its files, which hold what a run before has written. Not in the
  // constructor: what was opened before an error stays so until that has been told.
  void open();
  bool writes() const { return mesh_.rank() == 0; }
  bool has_recipe() const { return folder_ && folder_->has_recipe(); }  // a run was here before

  // One line, whatever names are in it; from any thread.
  void say(const std::string& text);
  void note(const std::string& line);  // in log.txt alone
  // work(), whose Error is noted and goes on: whoever asks later what became of the run finds it there.
  int noting_error(const std::function<int()>& work);

  void cut_back(int64_t step);  // forgets metrics of later steps; -1: all
  // Which run it is: run.toml, and after `done` steps the first that TensorBoard shows.
  void record_run(const Assembly& assembly, int64_t done);
  void write_recipe(const Assembly& assembly);  // run.toml again, of what is known by now

  void begin_progress(int64_t done);
  void show_progress(const report::ProgressState& state);
  void end_progress();

  void add(const report::StepRecord& record);
  void plot(const report::StepRecord& record);  // on TensorBoard, where it is due
  void add(const report::ValidationRecord& record);
  // `request`: what they were asked for by, JSON, which a PNG carries.
  void add_samples(int64_t step, const std::vector<formats::Picture>& sheets, const std::string& request);
  ReceiptFile* receipts() { return receipts_.get(); }  // null: this rank writes none

  // What is said of the steps so far is on the disk: before a checkpoint of them is. Throws Error(checkpoint) where the
  // folder is gone.
  void secure();
  void flush();  // at the run's end

 private:
  const Recipe& recipe_;
  const Mesh& mesh_;
  // On rank 0 only. From the last on they go: a bar's line ends first, and the folder's lock is held until every file
  // in it is closed.
  std::unique_ptr<report::RunFolder> folder_;
  std::unique_ptr<report::MetricsLog> metrics_;
  std::unique_ptr<report::TensorBoardLog> board_;  // null: [log] has none
  std::unique_ptr<ReceiptFile> receipts_;
  std::unique_ptr<report::Progress> progress_;
};

}  // namespace ditto
