// The parts that a recipe names, made and put together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ditto/encoder.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/parallel.h>
#include <ditto/sampler.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

using Log = std::function<void(const std::string&)>;

// What a checkpoint keeps of the data a model was made for.
struct SavedShapes {
  ModelSpec model;
  std::vector<TensorSpec> data;  // the source's
};
std::string to_text(const SavedShapes& shapes);
SavedShapes saved_shapes(const std::string& text, const std::string& where);  // throws Error(checkpoint)

// Which parts are wanted. A part that the recipe does not name is then an error that says so.
struct AssemblyParts {
  bool data = false;       // sources; the model's shapes come from them
  bool objective = false;  // and what it needs
  bool sampler = false;
  bool weights = true;   // their initial values; without them memory is asked for and not filled
  bool latents = false;  // samples may be such that no decoder turns them into pictures
  // Called with the sources once they are open, before anything is made for them; validation may be null.
  std::function<void(const Source& train, const Source* validation)> opened;
  // Where no data is opened (from a checkpoint): the shapes of the data and of the model.
  std::optional<SavedShapes> saved;
};

// Every kernel plugin's rows, with the recipe's pins. Throws Error(config) for a pin that names no op or no variant.
std::shared_ptr<OpTable> make_op_table(const Recipe& recipe, Registry& registry, Log log);

// Throws Error(config): a section that is needed and not there; a sampler that makes no sense with the scheduler.
void require(const Recipe& recipe, const Component& component, const std::string& section);
void refuse_pair(const Recipe& recipe, const Sampler& sampler, const Scheduler& scheduler);

// Made on every rank alike. Throws Error(config) or Error(plugin) before anything runs.
class Assembly {
 public:
  Assembly(Recipe& recipe, Registry& registry, const Mesh& mesh, const AssemblyParts& parts, Log log);

  // condition, tokens, all blocks, head, with every strategy's wraps, splits and joins; the prediction is whole on
  // every rank. With a program: as `program.head` ends it.
  torch::Tensor predict(const Batch& batch);
  torch::Tensor predict(const Batch& batch, Program& program);
  // The parts of it, and backward; without prepare, loss and round_done.
  Program program();
  // Data ranks run as many forwards as one another, together.
  bool in_step() const;
  // To be called when the layout's tensors have new values.
  void publish();

  Batch encode(Batch batch) const;  // the encoders, in turn
  // What the model sees of noisy samples at these times of the schedule: sets "x" and "t".
  void set_input(Batch& batch, const torch::Tensor& x_t, const torch::Tensor& time_B) const;
  torch::Tensor decode(const torch::Tensor& clean) const;  // -> pictures in -1 … 1
  std::string no_pictures() const;                         // why decoding gives none; empty: it does
  SavedShapes shapes() const { return {spec, data_spec_}; }
  int64_t parameters() const { return parameters_; }  // of the whole model, learned
  const WholeTensors& whole_tensors() const { return *whole_; }
  // Into the log, before: a plugin that never comes back from its constructor is named by the last line.
  void about_to_make(std::string_view kind, const std::string& id) const;

  Recipe& recipe;
  const Mesh& mesh;
  ModelSpec spec;
  std::shared_ptr<Source> train_data, validation_data;  // validation: null where the recipe has none
  std::vector<std::shared_ptr<Encoder>> encoders;       // image first
  std::shared_ptr<Scheduler> scheduler;
  std::shared_ptr<Sampler> sampler;
  std::shared_ptr<Model> model;
  std::shared_ptr<Objective> objective;
  std::shared_ptr<OpTable> table;
  std::unique_ptr<Context> ctx;
  Layout layout;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;  // in the order of sharding

 private:
  template <class Interface>
  std::shared_ptr<Interface> make(const std::string& section, Component& component,
                                  const typename Interface::Needs& needs);
  void open_data();
  void make_encoders();
  void make_model(const AssemblyParts& parts);
  void refuse_unmade_inputs() const;
  void make_strategies();
  void load_strategy(const std::string& id, const std::string& key, std::optional<Axis> axis);
  void run_unit(const Unit& unit, UnitCall& call);
  Stream begin(const Batch& batch);
  void constants(const Batch& batch, Stream& stream);
  void blocks(int64_t first, int64_t last, Stream& stream);
  torch::Tensor head(Stream& stream, const Batch& batch);
  void check_prediction(const Batch& batch, const torch::Tensor& prediction) const;

  std::vector<TensorSpec> data_spec_;
  Registry& registry_;
  Log log_;
  std::string computing_;                 // what a crash in the model is named by
  UnitRun run_;                           // run_unit with the strategies' wraps
  std::vector<ParallelStrategy*> wraps_;  // innermost first
  std::unique_ptr<WholeTensors> whole_;
  int64_t parameters_ = 0;
};

}  // namespace ditto
