// A training's checkpoints, as it makes them: of numbers that are finite, and of nothing else.
#pragma once

#include <memory>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/train/training.h"

namespace ditto {

class Checkpointer {
 public:
  // All outlive it. `ranks`: all, with a transport of their own (checkpoint::Saver).
  Checkpointer(Training& training, RunLog& log, const Group& ranks);

  // Once the training is assembled; all that follows after it, and by all ranks.
  void open();
  void say_disk();  // what the run's checkpoints will take
  // Of the steps that are done, once what the run's log says of them is on the disk; the files are written in the
  // background. Throws what went wrong in the save before, and as require_finite does.
  void save();
  // Throws Error(numeric), on all ranks alike, where the state is not finite, naming the step that it is said of.
  void require_finite(int64_t step);
  std::string way_back();  // for a remedy: which step there is to go back to
  void wait();             // until the last save is whole; throws what went wrong in it

 private:
  Training& training_;
  RunLog& log_;
  const Group& ranks_;
  std::unique_ptr<checkpoint::Saver> saver_;
};

}  // namespace ditto
