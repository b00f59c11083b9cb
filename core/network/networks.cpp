#include "core/network/networks.h"

#include <algorithm>

#include <torch/torch.h>

#include <ditto/error.h>

#include "core/checkpoint/checkpoint.h"
#include "core/network/names.h"

namespace ditto {

using torch::Tensor;

Networks::Networks(Components& components, const Mesh& mesh, const std::variant<TensorSpecs, SavedShapes>& from)
    : table(components.op_table()), components_(components), mesh_(mesh) {
  auto& recipe = components.recipe;
  const auto* saved = std::get_if<SavedShapes>(&from);
  data_ = saved ? saved->data : std::get<TensorSpecs>(from);
  TensorFlow flow;
  flow.make("data \"" + recipe.data.plugin + "\"", recipe.data.where, data_);
  make_encoders(flow);
  if (recipe.scheduler) scheduler = components.make<Scheduler>("scheduler", recipe.scheduler, {});

  require(recipe, recipe.model, "model");
  RunningModel::Setting setting{"model", recipe.model, {}};
  if (saved) {
    setting.needs = saved->model;
  } else {
    flow_ = flow;
    const auto specs = flow.specs();
    const auto* clean = find(specs, names::kClean);
    if (!clean)
      throw Error(ErrorKind::config, recipe.name,
                  "nobody makes \"" + std::string(names::kClean) +
                      "\", what the model is to learn; there is only: " + flow.text(),
                  "add an encoder that makes it: [encoder.image] with plugin = \"identity\" learns pictures as they "
                  "are; see `ditto plugins list`");
    setting.needs.inputs = specs;
    setting.needs.inputs.push_back({names::kInput, torch::kFloat, clean->shape, "the noisy sample"});
    setting.needs.inputs.push_back({names::kInputTime, torch::kFloat, {}, "its time, in the scheduler's units"});
    setting.needs.out_channels = scheduler ? scheduler->out_channels(clean->shape.at(0)) : clean->shape.at(0);
  }
  setting.compute = dtype_of(recipe.run.precision);
  setting.device = torch::Device(recipe.run.device);
  setting.seed = static_cast<uint64_t>(recipe.run.seed);
  main = std::make_unique<RunningModel>(components, mesh, table, setting);
}

void Networks::make_encoders(TensorFlow& flow) {
  for (auto& [section, component] : components_.recipe.encoders) {
    encoders.push_back(components_.make<Encoder>(section, component, {flow.specs()}));
    auto& encoder = *encoders.back();
    const auto who = "encoder \"" + component.plugin + "\"";
    if (!encoder.parameters().empty())
      throw Error(ErrorKind::config, component.where,
                  who + " has parameters, and there is no place yet to read them from",
                  "use an encoder without, or encode the data beforehand");
    flow.take(who, component.where, encoder.takes());
    flow.remove(encoder.takes());
    flow.make(who, component.where, encoder.makes());
  }
}

void Networks::add(Objective& objective) {
  const auto& recipe = components_.recipe;
  const auto who = "objective \"" + recipe.objective.plugin + "\"";
  main->add(objective, checkpoint::kObjectivePrefix);
  const auto features = objective.features();
  const int64_t depth = main->model->depth();
  for (const int64_t block : features)
    if (block < 0 || block >= depth || !find(main->model->makes(), "features"))
      throw Error(ErrorKind::config, recipe.objective.where,
                  who + " asks for the features of block " + std::to_string(block) + ", which model \"" +
                      recipe.model.plugin + "\" does not hand out",
                  "its blocks are 0 to " + std::to_string(depth - 1) + ", and its makes() must name \"features\"");
  main->tap(features);
  if (!flow_) return;
  flow_->take(who, recipe.objective.where, objective.takes());
  flow_->make(who, recipe.objective.where, objective.makes());
  auto inputs = main->model->takes();
  if (scheduler)
    std::erase_if(inputs, [](const TensorSpec& s) { return s.name == names::kInput || s.name == names::kInputTime; });
  flow_->take("model \"" + recipe.model.plugin + "\"", recipe.model.where, inputs);
}

void Networks::cut(RunningModel::Weights weights) {
  main->cut(components_);
  main->fill(weights);
}

FrozenNetwork& Networks::network(const std::string& name) {
  if (const auto at = frozen_.find(name); at != frozen_.end()) return *at->second;
  const auto& recipe = components_.recipe;
  std::string there;
  for (const auto& section : recipe.networks) {
    if (section.name == name)
      return *(
          frozen_[name] = std::make_unique<FrozenNetwork>(
              components_, section,
              FrozenNetwork::Surroundings{mesh_, table, scheduler.get(), main->setting.compute, main->setting.device}));
    there += (there.empty() ? "" : ", ") + section.name;
  }
  throw Error(ErrorKind::config, recipe.name, "there is no network \"" + name + "\"",
              there.empty() ? "add [network." + name + "], with weights = \"…\"" : "the recipe has: " + there);
}

void Networks::refuse_unused() const {
  for (const auto& section : components_.recipe.networks)
    if (!frozen_.count(section.name))
      throw Error(ErrorKind::config, section.component.where, "[network." + section.name + "] is used by nobody",
                  "leave it out, or name it in an objective or a guidance");
}

Batch Networks::encode(Batch batch) {
  if (!batch.parts.empty()) return std::move(batch).changed([this](Batch part) { return encode(std::move(part)); });
  torch::NoGradGuard no_grad;
  for (const auto& encoder : encoders) batch = encoder->encode(std::move(batch), *main->ctx);
  if (main->ctx->compute == torch::kDouble)  // a proof is in double precision from end to end
    for (auto& [name, tensor] : batch.tensors)
      if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
  return batch;
}

Tensor Networks::decode(const Tensor& clean) {
  for (const auto& encoder : encoders)
    if (encoder->decodes()) return encoder->decode(clean, *main->ctx);
  return clean;
}

std::string Networks::no_pictures() {
  torch::NoGradGuard no_grad;
  auto one = shape_of_one();
  one.insert(one.begin(), 1);
  const auto channels = decode(torch::zeros(one, main->ctx->device)).size(1);
  if (channels == 1 || channels == 3) return {};
  return "makes latents of " + std::to_string(channels) +
         " channels, which no decoder of this recipe turns into pictures";
}

void Networks::set_input(Batch& batch, const Tensor& x_t, const Tensor& time_B) const {
  batch[names::kInput] = scheduler->model_input(x_t, time_B);
  batch[names::kInputTime] = scheduler->c_noise(time_B).to(torch::kFloat).to(main->ctx->device);
}

Tensor Networks::predict(const std::string& name, Batch conditions, const Tensor& x_t, const Tensor& time_B) {
  if (!name.empty()) return network(name).predict(std::move(conditions), x_t, time_B);
  set_input(conditions, x_t, time_B);
  return scheduler->precondition(main->predict(conditions), x_t, time_B);
}

bool Networks::in_step() const {
  return main->in_step() ||
         std::any_of(frozen_.begin(), frozen_.end(), [](const auto& one) { return one.second->in_step(); });
}

TensorSpecs Networks::conditions() const {
  auto inputs = main->model->takes();
  std::erase_if(inputs, [](const TensorSpec& s) { return s.name == names::kInput || s.name == names::kInputTime; });
  // What the data says of them (the names of classes) the model does not.
  for (auto& input : inputs)
    if (const auto* offered = find(main->setting.needs.inputs, input.name)) input.names = offered->names;
  return inputs;
}

const std::vector<int64_t>& Networks::shape_of_one() const { return main->setting.needs.shape(names::kInput); }

}  // namespace ditto
