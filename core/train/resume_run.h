// What a run goes on from, how it is taken up, and what checkpoints keep for that.
#pragma once

#include <optional>
#include <string>

#include "core/assembly/run_notes.h"
#include "core/checkpoint/checkpoint.h"
#include "core/formats/text/table.h"
#include "core/receipts/receipt.h"
#include "core/train/training.h"

namespace ditto {

// All that a checkpoint holds, with the notes that a resume reads back.
checkpoint::TrainState train_state(Training& training);

// By options.resume. All is done by all ranks, in this order, and what differs from the run before is said.
class Resume {
 public:
  // All outlive it.
  Resume(Training& training, const TrainOptions& options, RunLog& log);

  // Before the training is assembled: finds the checkpoint, whose run's kernels the recipe takes over where it leaves
  // them to be measured, with what kernel sets kept in it. Throws Error(checkpoint).
  void find();
  const std::optional<std::string>& start() const { return start_; }  // none: the run begins anew
  // The training has the checkpoint's state, bit for bit. Throws Error(config) where the recipe may not go on from it,
  // and Error(checkpoint).
  void go_on();
  // Of a run that makes receipts: the first of them. In a folder that no run was in it takes its place at once.
  void begins(const std::optional<Receipt>& beginning);
  // The run's folder is this run's from here on: later checkpoints are set aside, later metrics and receipts forgotten,
  // and run.toml says what runs now. Behind the first step on all ranks, which may refuse what it is asked for and then
  // has cost nothing; after that it does nothing. By all ranks, over `ranks`, which nobody uses then.
  void take_place(const Group& ranks);
  bool has_begun() const { return has_begun_; }  // that was done

 private:
  void leave_mark();
  void say_other_run();
  void take_up(const std::string& path);
  void say_changes(const checkpoint::Info& info, const formats::Table& saved);
  void require_same_parts(const RunNotes& notes);
  void restore(const checkpoint::TrainState& state, const RunNotes& notes, const formats::Table& saved);
  bool allows(const std::string& key) const;

  Training& training_;
  const TrainOptions& options_;
  RunLog& log_;
  std::optional<std::string> start_;  // the checkpoint
  std::optional<Receipt> beginning_;
  bool has_place_ = false, has_begun_ = false;
};

}  // namespace ditto
