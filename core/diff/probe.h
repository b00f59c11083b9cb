// Looks on while a run trains, and enters what it makes as events: batches, what units read and make, what ops make and
// the weights they use, gradients of all of these, losses, and each parameter's summed gradient, new weights and
// average. It stands around units and beside the op table, so that no plugin knows of it, and it changes no number.
//
// Where ranks have a part of a tensor and it is known which (tokens of a sequence, heads of attention, a parameter's
// cuts), the parts go together. What ops make of cut parameters is left out: no other layout has it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/diff/events.h"
#include "core/train/step.h"

namespace ditto::diff {

class Probe final : public StepObserver {
 public:
  // After all is cut; it is to be one of TrainingStep::observers. The assembly outlives it, and no step outlives it.
  explicit Probe(Assembly& assembly);
  ~Probe() override;

  const Events& events() const { return events_; }

  void begins(int64_t step, Program& program) override;
  void has_gradients(const LossLedger& losses, const torch::Tensor& norm) override;
  void updates(Update& update) override;
  void has_updated() override;

 private:
  class Around;
  struct Place;
  struct Open;
  struct Named {
    Key key;
    Event like;
  };

  static Place place_in(const Batch& batch, const std::string& tensor);
  void run_unit(const RunningModel& model, const UnitRun& inner, const Unit& unit, UnitCall& call);
  Tensors attend(const Mesh& mesh, const AttentionOp& inner, const AttentionCall& call);
  void see_op(const std::string& op, const OpInputs& inputs, const Tensors& outputs);
  std::vector<const LayoutEntry*> parameters_of(const OpInputs& inputs);
  void see_fields(Open& open, Stream& stream, const std::string& op, const std::vector<torch::Tensor>& without);
  void see_outputs(Open& open, const UnitCall& call);
  Named named(Open& open, const std::string& op, const std::string& tensor) const;
  Named of_update(int64_t unit, int64_t at, const std::string& in, const std::string& op, const std::string& tensor);

  void note(const Named& named, const Place& place, const torch::Tensor& x);
  void note_gradient(const Named& named, const Place& place, const torch::Tensor& x);
  void note_parameter(const Named& named, const LayoutEntry& entry, const torch::Tensor& x);
  void enter(const Named& named, const torch::Tensor& x, Samples samples, std::vector<int64_t> shape,
             std::vector<int64_t> start);

  Assembly& assembly_;
  const int64_t rank_;
  std::vector<std::unique_ptr<Around>> around_;  // of each network that trains
  std::mutex mutex_;                             // of events_: a device's backward has a thread of its own
  Events events_;
  int64_t step_ = 0;
  Tensors averages_;         // along the entries of what learns; empty: there are none
  std::vector<Open*> open_;  // units that run, innermost last
  std::map<std::tuple<const void*, Unit, int64_t, size_t>, int64_t> unit_calls_;  // in this step
  // Of this step: samples of a micro-batch that is another rank's, run here to keep in step, and counting nothing.
  std::set<std::vector<int64_t>> idle_;
};

}  // namespace ditto::diff
