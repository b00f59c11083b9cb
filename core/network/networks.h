// The networks of a run and what surrounds them: from data to what the model sees, and back to pictures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <ditto/guidance.h>
#include <ditto/objective.h>
#include <ditto/sampler.h>

#include "core/data/shapes.h"
#include "core/network/frozen.h"
#include "core/network/running_encoder.h"
#include "core/network/trained.h"

namespace ditto {

// Why what has this shape, [C, …], is no picture or video; empty: it is one.
std::string no_pictures_of(const std::vector<int64_t>& decoded);

class Networks {
 public:
  // The encoders, the schedule and the model, uncut. `source`: what the data makes; or the shapes that a checkpoint
  // keeps. `frozen`: of encoders and other networks. Mesh and components outlive it. Throws Error(config) or
  // Error(plugin).
  Networks(Components& components, const Mesh& mesh, const std::variant<TensorSpecs, SavedShapes>& from,
           FrozenWeights frozen = FrozenWeights::read);

  // The objective's part: its parameters, the features it asks for, and what it makes and takes. It has asked for the
  // other networks that are to train.
  void add(Objective& objective);
  // Strategies cut the model and the other networks that train, which then get their numbers.
  void cut(RunningModel::Weights weights);
  // [network.NAME], made when it is first asked for. Throws Error(config) that lists what there is.
  OtherNetwork& network(const std::string& name);
  // Throws Error(config) for a network of the recipe that nobody has asked for.
  void refuse_unused() const;
  // What the data makes and nobody takes, once the objective is there.
  const std::vector<std::string>& unused() const { return unused_; }
  const std::map<std::string, std::unique_ptr<OtherNetwork>>& others() const { return others_; }

  // What the run trains: the model, and after it, by name, the other networks that do.
  std::vector<RunningModel*> training() const;
  // All that they and the objective learn, after `cut`: of a model alone that learns all of itself it is the model's
  // layout. Its entries'
  // tensors are those of the networks' own layouts, which strategies and the sum of gradients see.
  Layout& learned() { return joined_ ? *joined_ : main->layout; }
  std::vector<ParallelStrategy*> strategies() const;  // of all that train
  void set_phase(Phase phase);                        // likewise
  void parameters_changed();                          // likewise: their learned tensors have new values
  int64_t parameters() const;                         // learned numbers, uncut
  // By name, of the weights of those that are frozen: a run that goes on with others is another run.
  std::map<std::string, std::string> fingerprints() const;
  // The weights of a checkpoint, where nothing is trained: of the model, and of the others that have trained.
  void load(const SavedModel& saved, const std::string& which);

  // The encoders that need nothing of one another, not by a name of the data either: what they make of the data may be
  // kept (`ditto encode`). What others make may be drawn, so that an encoder that takes it runs at every step.
  std::vector<RunningEncoder*> encoders_of_data() const;
  // Of those the first part: what is to be kept, with what is left of the data.
  Batch precompute(Batch batch);
  // The data's batches hold that already: encode() does the rest.
  bool reads_precomputed = false;
  // The encoders, in turn, and of the empty text what is taken of it. `phase`: what the batch is for.
  Batch encode(Batch batch, Phase phase);
  // A batch, and the encoders whose first part is done.
  struct Precomputed {
    Batch batch;
    std::set<const RunningEncoder*> by;
  };
  // To be sampled with: of what is given, the first part of those encoders of the data whose inputs are there. It
  // draws nothing, so that what it makes of one sample may be repeated for many.
  Precomputed precompute_given(Batch batch);
  // What is left to do of those, and all of the others whose inputs are there by then.
  Batch encode_given(Precomputed given);
  // What the encoders make of the empty text, for whom takes it.
  const TensorSpecs& empty_text_specs() const { return offered_empty_; }
  // What the encoders make of texts alone, as far as it has a name of the empty text.
  const TensorSpecs& made_of_texts() const { return made_of_texts_; }
  // With what is taken of the empty text and not there. It is encoded once; of ranks that encode together, by all.
  Batch with_empty_text(Batch batch);
  torch::Tensor decode(const torch::Tensor& clean);  // -> pictures or videos in -1 … 1
  bool decodes_together() const;                     // on all ranks, or on none
  std::string no_pictures() const;                   // why decoding gives none; empty: it does
  // Of one picture [C, H, W], or of a video, that decoding makes of a sample of this shape.
  std::vector<int64_t> decoded_shape(const std::vector<int64_t>& shape_of_one) const;
  // What the model sees of noisy samples at these times of the schedule: sets "x" and "t".
  void set_input(Batch& batch, const torch::Tensor& x_t, const torch::Tensor& time_B) const;
  // Of the model or, by name, of another network: as a sampler sees it, for samples with these conditions.
  // `run`: who runs the model in its own place; none: it does.
  torch::Tensor predict(const std::string& network, Batch conditions, const torch::Tensor& x_t,
                        const torch::Tensor& time_B, const std::function<torch::Tensor(const Batch&)>& run = {});
  bool in_step() const;  // of any of them

  // The model's inputs that are no noisy sample and no time: what a sample is asked for by.
  TensorSpecs conditions() const;
  const std::vector<int64_t>& shape_of_one() const;  // x_0, [C, H, W] or [C, F, H, W]
  SavedShapes shapes() const { return {main->setting.needs, data_}; }

  // Along which encoders are cut. With loader.encode_ahead its groups are their own, as they may be called beside a
  // step's, and so is its traffic.
  const Mesh& encoder_mesh() const { return own_mesh_ ? *own_mesh_ : mesh_; }

 private:
  std::unique_ptr<const Mesh> own_mesh_;  // outlives the encoders

 public:
  std::shared_ptr<OpTable> table;
  std::vector<std::unique_ptr<RunningEncoder>> encoders;  // in the order of the recipe
  std::shared_ptr<Scheduler> scheduler;
  std::unique_ptr<RunningModel> main;

 private:
  void make_encoders(TensorFlow& flow);
  Batch encode_there(Precomputed given, Phase phase);
  void forget_texts(Batch& batch) const;
  const Batch& empty_text();
  RunningEncoder* decoder() const;
  TensorSpecs taken() const;
  void refuse_parts() const;
  std::unique_ptr<OtherNetwork> make_other(const NetworkSection& section);
  void check_flow(Objective& objective);
  void find_unused();
  void join_layouts();

  Components& components_;
  const Mesh& mesh_;
  const FrozenWeights frozen_weights_;
  TensorSpecs data_;
  TensorSpecs taken_by_objective_;
  std::vector<std::string> unused_;
  TensorSpecs offered_empty_;  // of the empty text what encoders make of it
  TensorSpecs made_of_texts_;
  std::optional<Batch> empty_text_;  // one sample: what is taken of that, once it was encoded
  std::optional<TensorFlow> flow_;   // none: shapes are a checkpoint's
  std::map<std::string, std::unique_ptr<OtherNetwork>> others_;
  std::optional<Layout> joined_;  // of several networks that train, or of a part of one
  bool has_objective_ = false;
};

}  // namespace ditto
