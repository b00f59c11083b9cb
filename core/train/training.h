// What a training is made of, and how far it is: what Resume, Checkpointer and what is measured of it all look at.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/data/sizes.h"
#include "core/train/run_log.h"
#include "core/train/step.h"
#include "core/train/train_options.h"

namespace ditto {

class Training {
 public:
  // All outlive it.
  Training(Recipe& recipe, Registry& registry, const Mesh& mesh, const TrainOptions& options, RunLog& log);

  // Makes all of it, on all ranks. `start`: the checkpoint that will be taken up; none: the first weights are read. Not
  // in the constructor: where it throws, what was made before lives until the error has been told, as its end may wait
  // for lost peers.
  void assemble(const std::optional<std::string>& start);
  std::string checkpoints() const;  // their folder

  Recipe& recipe;
  Registry& registry;
  const Mesh& mesh;
  // The step ends before what it moves, and loaders with their threads before the sources that they read.
  std::unique_ptr<Assembly> assembly;
  std::unique_ptr<Loader> loader, validation_loader;  // validation: null where the recipe has none
  std::shared_ptr<Optimizer> optimizer;
  std::unique_ptr<Ema> ema;
  std::unique_ptr<TrainingStep> step;
  std::map<std::string, KernelChoices> kept_before;  // by kernel sets, in the run that is gone on with
  int64_t done = 0;                                  // complete steps
  std::string data, held_out;                        // their fingerprints
  SizesFound sizes;                                  // of the data
  std::map<std::string, std::string> started_from;   // what checkpoints note of it

 private:
  void open_data();
  const TrainOptions& options_;
  RunLog& log_;
  std::unique_ptr<StepObserver> waits_;  // of the step, for the watch
  std::unique_ptr<StepObserver> shown_;  // of the step, for profilers of a GPU
};

}  // namespace ditto
