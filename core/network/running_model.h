// A model with all that surrounds it on this rank: context, layout, strategies, and the order of its units.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ditto/parallel/program.h>
#include <ditto/parallel/strategy.h>

#include "core/network/components.h"
#include "core/network/masked_mesh.h"

namespace ditto {

at::ScalarType dtype_of(const std::string& precision);  // "fp32", "bf16", "fp16" or "fp64"

class RunningModel {
 public:
  struct Setting {
    std::string section;  // "model", "network.guide": where its options stand
    Component component;
    ModelNeeds needs;
    at::ScalarType compute = at::kFloat;
    torch::Device device{torch::kCPU};
    uint64_t seed = 0;
    bool trains = true;
    std::string prefix = {};  // before its parameters' names: "network.NAME." of another network that trains
    AxisSet copied = {};      // axes of the mesh along which it is not cut: ranks there hold copies
  };
  // The model, uncut, its parameters without numbers. Mesh and table outlive it. Throws Error(config) or Error(plugin).
  RunningModel(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table, Setting setting);
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

  // Parameters of something else that is run with it: "objective.NAME" in its layout. Before `cut`.
  void add(Units& units, const std::string& prefix);
  // Strategies cut the layout. After it no rank holds more than its share, and that without numbers yet.
  void cut(Components& components);
  enum class Weights {
    none,     // not even memory
    room,     // memory, for numbers that will be read
    initial,  // the keyed draws of the run's seed
  };
  void fill(Weights weights);

  // Its units in order, with every strategy's wraps, splits and joins; the prediction is whole on every rank. With a
  // program: as `program.head` ends it.
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
  // Data ranks run as many forwards as one another, together.
  bool in_step() const;
  // To be called when the layout's tensors have new values.
  void parameters_changed();

  const Mesh& mesh() const { return mesh_; }
  int64_t parameters() const { return parameters_; }  // of the whole model, learned
  void replace(std::shared_ptr<Model> other);         // for tests: of the same parameters

  const Setting setting;
  std::shared_ptr<Model> model;
  std::unique_ptr<Context> ctx;
  Layout layout;
  std::set<size_t> on_host;  // entries of the layout whose leaves, and all that goes with them, are not on the device
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;  // in the order of sharding

 private:
  void run_unit(const Unit& unit, UnitCall& call);
  void check_prediction(const Batch& batch, const Outputs& outputs) const;
  void drop_numbers(Units& units) const;
  void shard(ParallelStrategy& strategy);
  std::vector<double> block_costs(Components& components) const;  // none: it cannot be counted

  const MaskedMesh mesh_;
  std::string computing_;  // what a crash in the model is named by
  std::unique_ptr<ModelProgram> units_;
  int64_t parameters_ = 0;
};

}  // namespace ditto
