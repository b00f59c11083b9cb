#include "core/network/networks.h"

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/checkpoint/checkpoint.h"
#include "core/data/names.h"
#include "core/mesh/gloo_mesh.h"

namespace ditto {

using torch::Tensor;

Networks::Networks(Components& components, const Mesh& mesh, const std::variant<TensorSpecs, SavedShapes>& from,
                   FrozenWeights frozen)
    : table(components.op_table()), components_(components), mesh_(mesh), frozen_weights_(frozen) {
  auto& recipe = components.recipe;
  const auto* saved = std::get_if<SavedShapes>(&from);
  data_ = saved ? saved->data : std::get<TensorSpecs>(from);
  TensorFlow flow;
  flow.make("data \"" + recipe.data.plugin + "\"", recipe.data.where, data_);
  make_encoders(flow);
  if (recipe.scheduler) scheduler = components.make<Scheduler>("scheduler", recipe.scheduler, {});

  require(recipe, recipe.model, "model");
  RunningModel::Setting setting{{"model", recipe.model}, {}};
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
  setting.adapter = recipe.adapter;
  setting.tread = recipe.tread;
  main = std::make_unique<RunningModel>(components, mesh, table, setting);
  if (main->adapter) recipe.resolve(*main->adapter);
}

void Networks::make_encoders(TensorFlow& flow) {
  const auto& run = components_.recipe.run;
  const auto& sections = components_.recipe.encoders;
  if (components_.recipe.loader.encode_ahead > 0 && !sections.empty()) own_mesh_ = mesh_beside(mesh_, "encoders");
  const RunningEncoder::Surroundings around{
      encoder_mesh(), table, dtype_of(run.precision), torch::Device(run.device), static_cast<uint64_t>(run.seed),
      frozen_weights_};
  for (const auto& section : sections) {
    encoders.push_back(std::make_unique<RunningEncoder>(components_, section, flow.specs(), around));
    const auto& encoder = *encoders.back()->encoder;
    const auto who = "encoder \"" + section.component.plugin + "\"";
    flow.encode(who, section.component.where, encoder.takes(), encoder.makes());
  }
  offered_empty_ = flow.end_encoders();
  for (const auto& encoder : encoders)
    for (const auto& spec : encoder->encoder->makes())
      if (find(offered_empty_, names::empty(spec.name))) made_of_texts_.push_back(spec);
}

namespace {

// Its inputs but the noisy sample and its time, which the host makes.
TensorSpecs conditions_of(TensorSpecs inputs) {
  std::erase_if(inputs, [](const TensorSpec& s) { return s.name == names::kInput || s.name == names::kInputTime; });
  return inputs;
}

}  // namespace

void Networks::add(Objective& objective) {
  const auto& recipe = components_.recipe;
  has_objective_ = true;
  taken_by_objective_ = objective.takes();
  const auto who = "objective \"" + recipe.objective.plugin + "\"";
  main->add(objective, checkpoint::kObjectivePrefix);
  const auto features = objective.features();
  const int64_t depth = main->model->depth();
  for (const int64_t block : features)
    if (block < 0 || block >= depth || !find(main->model->makes(), names::kFeatures))
      throw Error(ErrorKind::config, recipe.objective.where,
                  who + " asks for the features of block " + std::to_string(block) + ", which model \"" +
                      recipe.model.plugin + "\" does not hand out",
                  "its blocks are 0 to " + std::to_string(depth - 1) + ", and its makes() must name \"features\"");
  if (const auto route = main->route())
    for (const int64_t block : features)
      if (block >= route->start && block + 1 < route->end)
        throw Error(
            ErrorKind::config, recipe.objective.where,
            who + " asks for the features of block " + std::to_string(block) + ", which [tread] leads tokens around",
            "choose a block before " + std::to_string(route->start) + " or from " + std::to_string(route->end - 1) +
                " on, or another route");
  main->tap(features);
  if (flow_) check_flow(objective);
  const int stages = mesh_.size(Axis::pipeline);
  for (const auto& [name, network] : others_)
    if (network->trains() && stages > 1)
      throw Error(ErrorKind::config, network->where(),
                  "network \"" + name + "\" trains, and parallel.pipeline = " + std::to_string(stages) +
                      ": each of its ranks would hold a copy, of which the objective runs the last one's alone",
                  "leave parallel.pipeline = 1; data, tensor, context and expert axes cut it");
}

// What the objective and then the networks take is made by somebody.
void Networks::check_flow(Objective& objective) {
  const auto& recipe = components_.recipe;
  const auto who = "objective \"" + recipe.objective.plugin + "\"";
  flow_->take(who, recipe.objective.where, objective.takes());
  flow_->make(who, recipe.objective.where, objective.makes());
  const auto inputs = main->model->takes();
  flow_->take("model \"" + recipe.model.plugin + "\"", recipe.model.where, scheduler ? conditions_of(inputs) : inputs);
  for (const auto& [name, network] : others_)
    if (network->trains()) flow_->take("network \"" + name + "\"", network->where(), conditions_of(network->takes()));
  find_unused();
}

// Behind the encoders.
TensorSpecs Networks::taken() const {
  TensorSpecs taken = main->model->takes();
  const auto take = [&](const TensorSpecs& specs) { taken.insert(taken.end(), specs.begin(), specs.end()); };
  take(taken_by_objective_);
  for (const auto& [name, network] : others_) take(network->takes());
  return taken;
}

void Networks::find_unused() {
  auto taken = this->taken();
  for (const auto& encoder : encoders) {
    const auto takes = encoder->encoder->takes();
    taken.insert(taken.end(), takes.begin(), takes.end());
  }
  for (const auto& spec : data_) {
    const auto whole = spec.name.ends_with(names::kMask)
                           ? spec.name.substr(0, spec.name.size() - std::string(names::kMask).size())
                           : "";
    if (!find(taken, spec.name) && (whole.empty() || !find(data_, whole))) unused_.push_back(spec.name);
  }
}

void Networks::cut(RunningModel::Weights weights) {
  main->cut(components_);
  main->fill(weights);
  for (const auto& [name, network] : others_)
    if (auto* trained = dynamic_cast<TrainedNetwork*>(network.get())) trained->cut(components_, weights);
  const auto models = training();
  if (models.size() > 1 || main->frozen() > 0) join_layouts();
}

void Networks::join_layouts() {
  std::set<std::string> names;
  joined_.emplace();
  for (auto* model : training())
    for (const auto& entry : model->layout.entries) {
      if (!entry.trains) continue;
      if (!names.insert(entry.name).second)
        throw Error(ErrorKind::config, components_.recipe.name, "two networks learn \"" + entry.name + "\"",
                    "give [network.NAME] another name");
      joined_->entries.push_back(entry);
    }
}

OtherNetwork& Networks::network(const std::string& name) {
  if (const auto at = others_.find(name); at != others_.end()) return *at->second;
  const auto& recipe = components_.recipe;
  std::string there;
  for (const auto& section : recipe.networks) {
    if (section.name == name) return *(others_[name] = make_other(section));
    there += (there.empty() ? "" : ", ") + section.name;
  }
  throw Error(ErrorKind::config, recipe.name, "there is no network \"" + name + "\"",
              there.empty() ? "add [network." + name + "], with weights = \"…\"" : "the recipe has: " + there);
}

// Where an objective is there that has asked for all it needs, no other could train a network.
std::unique_ptr<OtherNetwork> Networks::make_other(const NetworkSection& section) {
  const OtherNetwork::Surroundings around{
      mesh_, table, scheduler.get(), main->setting.compute, main->setting.device, frozen_weights_, data_};
  if (!section.trains) return std::make_unique<FrozenNetwork>(components_, section, around);
  const auto& objective = components_.recipe.objective.plugin;
  if (has_objective_)
    throw Error(ErrorKind::config, section.component.where,
                "network \"" + section.name + "\" trains, and objective \"" + objective + "\" does not ask for it",
                "choose an objective that does, or leave trains = false, with weights = \"…\"");
  return std::make_unique<TrainedNetwork>(components_, section, around, *main);
}

void Networks::refuse_unused() const {
  for (const auto& section : components_.recipe.networks)
    if (!others_.count(section.name))
      throw Error(ErrorKind::config, section.component.where, "[network." + section.name + "] is used by nobody",
                  "leave it out, or name it in an objective or a guidance");
}

std::vector<RunningModel*> Networks::training() const {
  std::vector<RunningModel*> all{main.get()};
  for (const auto& [name, network] : others_)
    if (network->trains()) all.push_back(&network->running());
  return all;
}

std::vector<ParallelStrategy*> Networks::strategies() const {
  std::vector<ParallelStrategy*> all;
  for (auto* model : training())
    for (auto& strategy : model->strategies) all.push_back(strategy.get());
  return all;
}

void Networks::set_phase(Phase phase) {
  for (auto* model : training()) model->ctx->phase = phase;
}

void Networks::parameters_changed() {
  for (auto* model : training()) model->parameters_changed();
}

int64_t Networks::parameters() const {
  int64_t sum = 0;
  for (auto* model : training()) sum += model->learned();
  return sum;
}

std::map<std::string, std::string> Networks::fingerprints() const {
  std::map<std::string, std::string> all;
  for (const auto& [name, network] : others_)
    if (const auto* frozen = dynamic_cast<const FrozenNetwork*>(network.get())) all[name] = frozen->fingerprint();
  return all;
}

void Networks::load(const SavedModel& saved, const std::string& which) {
  for (auto* model : training())
    load_weights(saved, which, *model, model == main.get() ? saved.prefix : model->setting.prefix);
}

std::vector<RunningEncoder*> Networks::encoders_of_data() const {
  std::vector<RunningEncoder*> all;
  auto given = data_;  // without what an encoder has made by the data's own name
  for (const auto& encoder : encoders) {
    const auto takes = encoder->encoder->takes(), makes = encoder->encoder->makes();
    if (std::all_of(takes.begin(), takes.end(), [&](const TensorSpec& spec) { return find(given, spec.name); }))
      all.push_back(encoder.get());
    std::erase_if(given, [&](const TensorSpec& spec) { return find(makes, spec.name); });
  }
  return all;
}

Batch Networks::precompute(Batch batch) {
  if (!batch.parts.empty()) {
    refuse_parts();
    return std::move(batch).changed([&](Batch part) { return precompute(std::move(part)); });
  }
  for (auto* encoder : encoders_of_data()) batch = encoder->precompute(std::move(batch));
  return batch;
}

Batch Networks::encode(Batch batch, Phase phase) {
  if (!batch.parts.empty()) {
    refuse_parts();
    return std::move(batch).changed([&](Batch part) { return encode(std::move(part), phase); });
  }
  const auto done = reads_precomputed ? encoders_of_data() : std::vector<RunningEncoder*>();
  for (const auto& encoder : encoders) {
    const bool is_done = std::find(done.begin(), done.end(), encoder.get()) != done.end();
    if (!is_done) batch = encoder->precompute(std::move(batch));
    batch = encoder->encode(std::move(batch), phase);
  }
  forget_texts(batch);
  batch = with_empty_text(std::move(batch));
  if (main->ctx->compute == torch::kDouble)  // a proof is in double precision from end to end
    for (auto& [name, tensor] : batch.tensors)
      if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
  return batch;
}

// Data ranks have batches of different numbers of sizes, and would not meet.
void Networks::refuse_parts() const {
  for (const auto& encoder : encoders)
    if (encoder->in_step())
      throw Error(ErrorKind::config, encoder->section,
                  "is cut over data ranks, whose batches are of several sizes each",
                  "set " + encoder->section + ".parallel = { shard = 1 }");
}

namespace {

bool has_all(const Batch& batch, const TensorSpecs& specs) {
  return std::all_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) { return batch.has(spec.name); });
}

}  // namespace

Networks::Precomputed Networks::precompute_given(Batch batch) {
  Precomputed made{std::move(batch), {}};
  for (auto* encoder : encoders_of_data()) {
    if (!has_all(made.batch, encoder->encoder->takes())) continue;
    made.batch = encoder->precompute(std::move(made.batch));
    made.by.insert(encoder);
  }
  return made;
}

Batch Networks::encode_given(Precomputed given) {
  auto batch = encode_there(std::move(given), Phase::sample);
  forget_texts(batch);
  return with_empty_text(std::move(batch));
}

Batch Networks::encode_there(Precomputed given, Phase phase) {
  auto batch = std::move(given.batch);
  for (const auto& encoder : encoders) {
    const bool is_done = given.by.count(encoder.get()) > 0;
    if (!is_done && !has_all(batch, encoder->encoder->takes())) continue;
    if (!is_done) batch = encoder->precompute(std::move(batch));
    batch = encoder->encode(std::move(batch), phase);
  }
  return batch;
}

void Networks::forget_texts(Batch& batch) const {
  for (const auto& encoder : encoders)
    for (const auto& spec : encoder->encoder->takes())
      if (is_text(spec)) batch.tensors.erase(spec.name);
}

const Batch& Networks::empty_text() {
  if (empty_text_) return *empty_text_;
  empty_text_.emplace();
  TensorSpecs wanted;
  for (const auto& spec : taken())
    if (find(offered_empty_, spec.name)) wanted.push_back(spec);
  if (wanted.empty()) return *empty_text_;
  Batch texts;
  texts.ids = {0};
  texts.weights = {1};
  for (const auto& spec : data_)
    if (is_text(spec)) {
      texts[spec.name] = torch::zeros({1, 1}, spec.dtype);
      texts.lengths[spec.name] = {0};
    }
  const auto encoded = encode_there({std::move(texts), {}}, Phase::evaluate);
  for (const auto& [made, tensor] : encoded.tensors) {
    const auto name = names::empty(made);
    if (!find(wanted, name)) continue;
    empty_text_->tensors[name] = tensor;
    if (const auto known = encoded.lengths.find(made); known != encoded.lengths.end())
      empty_text_->lengths[name] = known->second;
  }
  return *empty_text_;
}

Batch Networks::with_empty_text(Batch batch) {
  for (const auto& [name, tensor] : empty_text().tensors) {
    if (batch.has(name)) continue;
    auto shape = tensor.sizes().vec();
    shape[0] = batch.size();
    batch[name] = tensor.expand(shape);
    if (const auto known = empty_text().lengths.find(name); known != empty_text().lengths.end())
      batch.lengths[name].assign(batch.ids.size(), known->second.at(0));
  }
  return batch;
}

// What is decoded is "clean".
RunningEncoder* Networks::decoder() const {
  for (const auto& encoder : encoders)
    if (encoder->encoder->decodes() && find(encoder->encoder->makes(), names::kClean)) return encoder.get();
  return nullptr;
}

Tensor Networks::decode(const Tensor& clean) {
  auto* by = decoder();
  return by ? by->decode(clean) : clean;
}

bool Networks::decodes_together() const {
  const auto* by = decoder();
  return by && !by->strategies.empty();
}

std::vector<int64_t> Networks::decoded_shape(const std::vector<int64_t>& shape_of_one) const {
  const auto* by = decoder();
  return by ? by->encoder->decoded(shape_of_one) : shape_of_one;
}

std::string Networks::no_pictures() const {
  auto one = shape_of_one();
  std::replace(one.begin(), one.end(), kOwnSide, int64_t{64});  // any will do
  return no_pictures_of(decoded_shape(one));
}

std::string no_pictures_of(const std::vector<int64_t>& decoded) {
  const auto channels = decoded.front();
  if (channels == 1 || channels == 3) return {};
  return "makes latents of " + std::to_string(channels) +
         " channels, which no decoder of this recipe turns into pictures";
}

void Networks::set_input(Batch& batch, const Tensor& x_t, const Tensor& time_B) const {
  batch[names::kInput] = scheduler->model_input(x_t, time_B);
  batch[names::kInputTime] = model_time(scheduler->c_noise(time_B), main->ctx->device);
}

Tensor Networks::predict(const std::string& name, Batch conditions, const Tensor& x_t, const Tensor& time_B,
                         const std::function<Tensor(const Batch&)>& run) {
  if (!name.empty()) return network(name).predict(std::move(conditions), x_t, time_B);
  set_input(conditions, x_t, time_B);
  return scheduler->precondition(run ? run(conditions) : main->predict(conditions), x_t, time_B);
}

bool Networks::in_step() const {
  return main->in_step() ||
         std::any_of(others_.begin(), others_.end(), [](const auto& one) { return one.second->in_step(); }) ||
         std::any_of(encoders.begin(), encoders.end(), [](const auto& one) { return one->in_step(); });
}

TensorSpecs Networks::conditions() const {
  auto inputs = conditions_of(main->model->takes());
  // What the data says of them (the names of classes) the model does not.
  for (auto& input : inputs)
    if (const auto* offered = find(main->setting.needs.inputs, input.name)) input.names = offered->names;
  return inputs;
}

const std::vector<int64_t>& Networks::shape_of_one() const { return main->setting.needs.shape(names::kInput); }

}  // namespace ditto
