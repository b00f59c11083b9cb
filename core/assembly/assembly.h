// The parts that a training or a sampling needs, made from a recipe and put together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ditto/data.h>
#include <ditto/optimizer.h>

#include "core/data/batch_plan.h"
#include "core/data/loader.h"
#include "core/network/cached_blocks.h"
#include "core/network/flops.h"
#include "core/network/networks.h"

namespace ditto {

// Levels of noise at which held-out samples are seen (core/train/validation.h).
inline constexpr int64_t kStrata = 8;

// Which parts are wanted. A part that the recipe does not name is then an error that says so.
struct AssemblyParts {
  bool data = false;            // sources; the model's shapes come from them
  bool held_out_alone = false;  // of the data, as nothing is learned
  bool objective = false;
  bool sampler = false;
  RunningModel::Weights weights = RunningModel::Weights::initial;
  FrozenWeights frozen = FrozenWeights::read;  // of encoders and other networks
  bool latents = false;                        // samples may be such that no decoder turns them into pictures
  bool shapes_only = false;                    // of the data, which need not be there
  // Called with the sources once they are open, before anything is made for them; each may be null.
  std::function<void(const Source* train, const Source* validation)> opened;
  // Where no data is opened (from a checkpoint): the shapes of the data and of the model.
  std::optional<SavedShapes> saved;
  bool measures = false;  // what the recipe leaves to be measured: all ranks make this assembly, and together
  std::map<std::string, KernelChoices> kept;  // by kernel sets, in the run that is gone on with
};

// Made on every rank alike. Throws Error(config) or Error(plugin) before anything runs.
class Assembly {
 public:
  Assembly(Recipe& recipe, Registry& registry, const Mesh& mesh, const AssemblyParts& parts, Log log);

  // Over all that the run learns, and of all its groups; the recipe must name one.
  std::shared_ptr<Optimizer> make_optimizer();
  // How the samples of this source are grouped into micro-batches: their sizes, and the model's tokens of each. Asked
  // for while the assembly and the loader live.
  BatchPlanner::Sizes sizes(const Loader& loader);

  // What a step, or the run's first grid of samples, would refuse: of each size that is learned from (none: all have
  // one) the model's forward on shapes alone, and the sampler's times. Throws Error(config) or Error(shape).
  void check(const std::vector<SampleSize>& learned);

  // What a reader of the recipe may not expect of its data: a sentence each. With data and an objective.
  std::vector<std::string> notes() const;

  Recipe& recipe;
  const Mesh& mesh;
  Components components;
  std::shared_ptr<Source> train_data, validation_data;  // null: not wanted; validation also where the recipe has none
  std::unique_ptr<Networks> networks;
  RunningModel* main = nullptr;  // the model that is trained or sampled from, of networks
  std::shared_ptr<Objective> objective;
  std::shared_ptr<Sampler> sampler;
  std::shared_ptr<Guidance> guidance;
  std::unique_ptr<CachedBlocks> cache;  // null where the recipe has none, or nothing is sampled

 private:
  void open_data(const AssemblyParts& parts);
  void make_objective();
  void make_sampler(const AssemblyParts& parts);
  FlopCounter& counter();
  std::vector<std::string> learned_names() const;

  std::unique_ptr<WholeTensors> whole_;
  std::unique_ptr<FlopCounter> counter_;  // once somebody asks for tokens
};

}  // namespace ditto
