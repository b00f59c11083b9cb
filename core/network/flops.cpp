#include "core/network/flops.h"

#include <torch/torch.h>

#include "core/network/names.h"

namespace ditto {

FlopCounter::FlopCounter(Components& components, const RunningModel& of) {
  const ShapesAlone shapes;
  model_ = components.make<Model>(of.setting.section, of.setting.component, of.setting.needs);
}

double FlopCounter::forward(const Batch& batch) {
  Batch inputs;
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& input : model_->takes()) {
    std::vector<int64_t> sizes{batch.size()};
    if (input.name == names::kInput)
      sizes = batch.at(names::kClean).sizes().vec();
    else if (batch.has(input.name))
      sizes = batch.at(input.name).sizes().vec();
    else
      sizes.insert(sizes.end(), input.shape.begin(), input.shape.end());
    inputs[input.name] = torch::empty(sizes, torch::TensorOptions(input.dtype).device(torch::kMeta));
    shapes.push_back(std::move(sizes));
  }
  inputs.ids = batch.ids;
  inputs.weights = batch.weights;
  const auto known = counted_.find(shapes);
  return known != counted_.end() ? known->second : counted_[shapes] = count(inputs);
}

double FlopCounter::count(const Batch& batch) const {
  torch::NoGradGuard no_grad;
  std::map<std::string, double> by_part;
  Context ctx(std::make_shared<OpTable>(), Random(0));
  ctx.device = torch::kMeta;
  ctx.phase = Phase::evaluate;
  ctx.flops = &by_part;
  ModelProgram program(*model_, ctx);
  auto stream = program.begin(batch);
  program.blocks(0, model_->depth(), stream);
  program.head(stream, batch);
  double operations = 0;
  for (const auto& [part, count] : by_part) operations += count;
  return operations;
}

}  // namespace ditto
