// The networks of a run and what surrounds them: from data to what the model sees, and back to pictures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ditto/encoder.h>
#include <ditto/guidance.h>
#include <ditto/objective.h>
#include <ditto/sampler.h>

#include "core/network/frozen.h"
#include "core/network/shapes.h"

namespace ditto {

class Networks {
 public:
  // The encoders, the schedule and the model, uncut. `source`: what the data makes; or the shapes that a checkpoint
  // keeps. Mesh and components outlive it. Throws Error(config) or Error(plugin).
  Networks(Components& components, const Mesh& mesh, const std::variant<TensorSpecs, SavedShapes>& from);

  // The objective's part: its parameters, the features it asks for, and what it makes and takes.
  void add(Objective& objective);
  // Strategies cut the model, which then gets its numbers.
  void cut(RunningModel::Weights weights);
  // [network.NAME], made when it is first asked for. Throws Error(config) that lists what there is.
  FrozenNetwork& network(const std::string& name);
  // Throws Error(config) for a network of the recipe that nobody has asked for.
  void refuse_unused() const;
  const std::map<std::string, std::unique_ptr<FrozenNetwork>>& frozen() const { return frozen_; }

  Batch encode(Batch batch);                         // the encoders, in turn
  torch::Tensor decode(const torch::Tensor& clean);  // -> pictures or videos in -1 … 1
  std::string no_pictures();                         // why decoding gives none; empty: it does
  // What the model sees of noisy samples at these times of the schedule: sets "x" and "t".
  void set_input(Batch& batch, const torch::Tensor& x_t, const torch::Tensor& time_B) const;
  // Of the model or, by name, of another network: as a sampler sees it, for samples with these conditions.
  torch::Tensor predict(const std::string& network, Batch conditions, const torch::Tensor& x_t,
                        const torch::Tensor& time_B);
  bool in_step() const;  // of any of them

  // The model's inputs that are no noisy sample and no time: what a sample is asked for by.
  TensorSpecs conditions() const;
  const std::vector<int64_t>& shape_of_one() const;  // x_0, [C, H, W] or [C, F, H, W]
  SavedShapes shapes() const { return {main->setting.needs, data_}; }

  std::shared_ptr<OpTable> table;
  std::vector<std::shared_ptr<Encoder>> encoders;  // in the order of the recipe
  std::shared_ptr<Scheduler> scheduler;
  std::unique_ptr<RunningModel> main;

 private:
  void make_encoders(TensorFlow& flow);

  Components& components_;
  const Mesh& mesh_;
  TensorSpecs data_;
  std::optional<TensorFlow> flow_;  // none: shapes are a checkpoint's
  std::map<std::string, std::unique_ptr<FrozenNetwork>> frozen_;
};

}  // namespace ditto
