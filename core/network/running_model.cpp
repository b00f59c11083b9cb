#include "core/network/running_model.h"

#include <algorithm>
#include <map>
#include <optional>

#include <ATen/record_function.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn/maps.h>
#include <ditto/parallel/backward_watch.h>

#include "core/config/numerics.h"
#include "core/data/names.h"
#include "core/measure/shown_range.h"
#include "core/network/flops.h"

namespace ditto {

using torch::Tensor;

namespace {

// A unit's backward on the time lines of a GPU's profilers. Its forward is there as a scope of LibTorch's (run_unit).
class ShownBackward final : public ParallelStrategy {
 public:
  ShownBackward()
      : watch_([this](const Unit& unit) { ranges_.try_emplace(unit, "backward of " + to_text(unit)); },
               [this](const Unit& unit) { ranges_.erase(unit); }) {}
  std::optional<Axis> axis() const override { return std::nullopt; }
  UnitRun wrap_unit(UnitRun run) override { return watch_.wrap(std::move(run)); }

 private:
  std::map<Unit, ShownRange> ranges_;
  BackwardWatch watch_;
};

}  // namespace

RunningModel::RunningModel(Components& components, const Mesh& mesh, std::shared_ptr<const OpTable> table,
                           Setting setting_)
    : ModelUnits(components, mesh, std::move(table), std::move(setting_)),
      computing_(plugin_name(Model::kKind, setting.component.plugin) + ", computing") {
  units_ =
      std::make_unique<ModelProgram>(*model, *ctx, [this](const Unit& unit, UnitCall& call) { run_unit(unit, call); });
}

bool RunningModel::has_maps() const {
  return std::any_of(layout.entries.begin(), layout.entries.end(), [](const LayoutEntry& entry) {
    return entry.unit.kind == Unit::Kind::block && entry.full_shape.size() > 3 &&
           dynamic_cast<const Convolution*>(entry.layer);
  });
}

void RunningModel::cut(Components& components) {
  const auto& recipe = components.recipe;
  if (const auto& format = recipe.run.memory_format; format != kMeasured && !is_one_number(recipe) && has_maps())
    ctx->maps = format == kChannelsLast ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  RunningUnits::cut(components,
                    {plugin_name(Model::kKind, setting.component.plugin), model->token_local(), model->depth(),
                     [&] { return block_costs(components); }},
                    [this](ParallelStrategy& strategy) { units_->wrap(strategy); });
  if (setting.trains && ctx->device.is_cuda() && ShownRange::is_built())
    units_->wrap(*(shown_ = std::make_shared<ShownBackward>()));
  if (const auto around = route())
    guarded([&] { return plugin_name(Model::kKind, setting.component.plugin); }, [&] { units_->route(*around); });
}

// What is asked on shapes alone may fail in any way.
std::vector<double> RunningModel::block_costs(Components& components) const {
  try {
    return FlopCounter(components, *this).of_blocks();
  } catch (const Error&) {
    return {};
  }
}

void RunningModel::run_unit(const Unit& unit, UnitCall& call) {
  const Doing doing(computing_.c_str());
  at::RecordFunction scope(at::RecordScope::USER_SCOPE);  // for observers: profilers, OneNumberGuard
  if (scope.isActive()) scope.before(std::string_view(to_text(unit) + " of model '" + setting.component.plugin + "'"));
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

Program RunningModel::program() { return units_->program(mesh().traffic()); }

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
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
  if (!torch::GradMode::is_enabled())
    for (auto& strategy : strategies)
      if (auto prediction = strategy->predict(batch, program)) return *prediction;
  auto stream = program.begin(batch);
  program.blocks(0, model->depth(), stream);
  const auto outputs = program.head(stream, batch);
  return batch.parts.empty() ? outputs.at(names::kPrediction) : Tensor();
}

Outputs RunningModel::run(const Batch& batch, std::map<std::string, Tensor>* auxiliary_losses) {
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
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
