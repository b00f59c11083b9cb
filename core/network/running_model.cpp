#include "core/network/running_model.h"

#include <algorithm>

#include <torch/torch.h>

#include <ditto/error.h>

#include "core/network/flops.h"
#include "core/network/names.h"
#include "core/network/strategies.h"

namespace ditto {

using torch::Tensor;

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "bf16") return torch::kBFloat16;
  if (precision == "fp16") return torch::kHalf;
  return precision == "fp64" ? torch::kDouble : torch::kFloat;
}

RunningModel::RunningModel(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table,
                           Setting setting_)
    : setting(std::move(setting_)),
      mesh_(mesh, setting.copied),
      computing_(plugin_name(Model::kKind, setting.component.plugin) + ", computing") {
  ctx = std::make_unique<Context>(std::move(table), Random(setting.seed));
  ctx->compute = setting.compute;
  ctx->device = setting.device;
  model = components.make<Model>(setting.section, setting.component, setting.needs);
  drop_numbers(*model);
  layout = Layout::of(*model, setting.prefix);
  for (const auto& entry : layout.entries) parameters_ += c10::multiply_integers(entry.full_shape);
  units_ =
      std::make_unique<ModelProgram>(*model, *ctx, [this](const Unit& unit, UnitCall& call) { run_unit(unit, call); });
}

// Shapes alone: memory comes with the numbers, when what is not this rank's share is cut off.
void RunningModel::drop_numbers(Units& units) const {
  const auto leaf_dtype = setting.compute == torch::kDouble ? torch::kDouble : torch::kFloat;
  torch::NoGradGuard no_grad;
  for (auto& item : units.named_parameters()) {
    auto& leaf = item.value();
    free_storage(leaf);
    if (leaf.scalar_type() != leaf_dtype || leaf.device() != setting.device) {
      const auto other = torch::empty(leaf.sizes(), torch::TensorOptions(leaf_dtype).device(setting.device));
      free_storage(other);
      leaf.set_data(other);
    }
    if (!setting.trains) leaf.set_requires_grad(false);
  }
}

void RunningModel::add(Units& units, const std::string& prefix) {
  drop_numbers(units);
  for (auto& entry : Layout::of(units, prefix).entries) {
    parameters_ += c10::multiply_integers(entry.full_shape);
    layout.entries.push_back(std::move(entry));
  }
}

void RunningModel::cut(Components& components) {
  AxisSet axes(kAxes.begin(), kAxes.end());
  for (const Axis axis : setting.copied) axes.erase(axis);
  if (!setting.trains) axes.erase(Axis::replicate);
  ParallelStrategy::Needs needs{
      &mesh_,         components.recipe.run.deterministic,    model->token_local(), ctx->compute,
      model->depth(), [&] { return block_costs(components); }};
  strategies = make_strategies(components, needs, axes, setting.trains);
  if (setting.trains) refuse_unread_options(components.recipe, components.registry);
  // The pipeline is last: until then each strategy sees all of the model.
  for (auto strategy = strategies.rbegin(); strategy != strategies.rend(); ++strategy) (*strategy)->claim(layout);
  for (auto& strategy : strategies) shard(*strategy);
  for (auto* strategy : in_order_of_wrapping(strategies)) units_->wrap(*strategy);
}

// A strategy that cuts nothing and gives an entry another leaf has moved it to the host's memory.
void RunningModel::shard(ParallelStrategy& strategy) {
  std::vector<Tensor> before;
  for (const auto& entry : layout.entries) before.push_back(entry.tensor);
  strategy.shard(layout);
  if (strategy.axis()) return;
  for (size_t i = 0; i < before.size(); ++i)
    if (!layout.entries[i].tensor.is_same(before[i])) on_host.insert(i);
}

// Of one sample; a text is as long as those of published models. What is asked on shapes alone may fail in any way.
std::vector<double> RunningModel::block_costs(Components& components) const {
  constexpr int64_t kTextLength = 128;
  try {
    return FlopCounter(components, *this).of_blocks(1, kTextLength);
  } catch (const Error&) {
    return {};
  }
}

void RunningModel::fill(Weights weights) {
  if (weights == Weights::none) return;
  if (weights == Weights::initial) initialise(layout, ctx->random);
  for (auto& entry : layout.entries)
    if (is_freed(entry.tensor)) fill_storage(entry.tensor);
  if (weights == Weights::initial) parameters_changed();
}

void RunningModel::parameters_changed() {
  torch::NoGradGuard no_grad;
  // A fused update is not seen by version counters, which tell compute copies to follow.
  for (auto& entry : layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
  for (auto& strategy : strategies) strategy->parameters_changed();
}

bool RunningModel::in_step() const {
  return std::any_of(strategies.begin(), strategies.end(), [](const auto& strategy) { return strategy->in_step(); });
}

void RunningModel::run_unit(const Unit& unit, UnitCall& call) {
  const Doing doing(computing_.c_str());
  guarded([&] { return to_text(unit) + " of model '" + setting.component.plugin + "'"; },
          [&] { run_model_unit(*model, unit, call); });
  if (unit.kind != Unit::head) return;
  size_t part = 0;
  for (const auto& samples : call.batch) check_prediction(samples, of_part(call.outputs, call.batch, part++));
}

// A wrong number of channels might be broadcast over the target's.
void RunningModel::check_prediction(const Batch& batch, const Outputs& outputs) const {
  auto expected = batch.at(names::kInput).sizes().vec();
  expected.at(1) = setting.needs.out_channels;
  const auto& prediction = outputs.at(names::kPrediction);
  if (prediction.defined() && prediction.sizes() == at::IntArrayRef(expected)) return;
  throw Error(ErrorKind::plugin, "head of model '" + setting.component.plugin + "'",
              "gave " + (prediction.defined() ? to_text(OptionValue(prediction.sizes().vec())) : "nothing") +
                  ", expected " + to_text(OptionValue(expected)) +
                  ": samples, ModelNeeds::out_channels, and the sizes of x",
              "correct head(), or its output layer");
}

Program RunningModel::program() { return units_->program(mesh_.traffic()); }

void RunningModel::tap(const std::vector<int64_t>& blocks) { units_->tap(blocks); }

void RunningModel::run_inside(const Unit& unit, const Batch& batch, Stream& stream, Outputs& outputs,
                              const std::function<void()>& body) {
  UnitCall call{batch, stream, outputs, *ctx, body};
  units_->run(unit, call);
}

Tensor RunningModel::predict(const Batch& batch) {
  auto whole = program();
  return predict(batch, whole);
}

Tensor RunningModel::predict(const Batch& batch, Program& program) {
  const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
  if (!torch::GradMode::is_enabled())
    for (auto& strategy : strategies)
      if (auto prediction = strategy->predict(batch, program)) return *prediction;
  auto stream = program.begin(batch);
  program.blocks(0, model->depth(), stream);
  return program.head(stream, batch).at(names::kPrediction);
}

Outputs RunningModel::run(const Batch& batch, std::map<std::string, Tensor>* auxiliary_losses) {
  const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
  auto stream = units_->begin(batch);
  units_->blocks(0, model->depth(), stream);
  auto outputs = units_->head(stream, batch);
  if (auxiliary_losses) *auxiliary_losses = std::move(stream.auxiliary_losses);
  return outputs;
}

void RunningModel::replace(std::shared_ptr<Model> other) {
  model = std::move(other);
  units_->replace(*model);
}

}  // namespace ditto
