// A model as a rank runs it: cut and filled, its units in their order.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/parallel/program.h>

#include "core/network/model_units.h"

namespace ditto {

class RunningModel final : public ModelUnits {
 public:
  // The model, uncut, its parameters without numbers. Mesh and table outlive it. Throws Error(config) or Error(plugin).
  RunningModel(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table, Setting setting);

  // Parameters of something else that is run with it: "objective.NAME" in its layout. Before `cut`.
  void add(Units& units, const std::string& prefix) { take(units, prefix); }
  // Whether a block of the model has a convolution over pictures or videos.
  bool has_maps() const;
  // Strategies cut the layout. After it no rank holds more than its share, and that without numbers yet.
  void cut(Components& components);
  // Puts one more around its units, outermost: who looks on, and changes nothing. After `cut`; it outlives this.
  void wrap(ParallelStrategy& strategy) { units_->wrap(strategy); }

  // Its units in order, with every strategy's wraps, splits and joins; the prediction is whole on every rank. With a
  // program: as `program.head` ends it, which has seen all there is of samples of several sizes.
  torch::Tensor predict(const Batch& batch);
  torch::Tensor predict(const Batch& batch, Program& program);
  // The same with the features of blocks that `tap` asked for; not of a pipeline.
  Outputs run(const Batch& batch, std::map<std::string, torch::Tensor>* auxiliary_losses = nullptr);
  void tap(const std::vector<int64_t>& blocks);
  // The parts, and backward; without prepare, loss and accumulation_done.
  Program program();
  // Runs something that is no unit of the model, as a unit, inside of what strategies do around it.
  void run_inside(const Unit& unit, const Batch& batch, Stream& stream, Outputs& outputs,
                  const std::function<void()>& body);
  void replace(std::shared_ptr<Model> other);  // for tests: of the same parameters

 private:
  void run_unit(const Unit& unit, UnitCall& call);
  void check_prediction(const Batch& batch, const Outputs& outputs) const;
  std::vector<double> block_costs(Components& components) const;  // none: it cannot be counted

  std::string computing_;                    // what a crash in the model is named by
  std::shared_ptr<ParallelStrategy> shown_;  // its backward, to profilers of a GPU; null: nobody shows it
  std::unique_ptr<ModelProgram> units_;
};

}  // namespace ditto
