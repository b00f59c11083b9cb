#include "core/train/assembly.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include <torch/torch.h>

#include "core/dist/whole.h"
#include "core/formats/json.h"
#include "core/train/launch.h"

namespace ditto {

using torch::Tensor;

std::string to_text(const SavedShapes& shapes) {
  auto data = nlohmann::json::array();
  for (const auto& tensor : shapes.data)
    data.push_back({{"name", tensor.name},
                    {"dtype", static_cast<int>(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"range", tensor.range}});
  const auto& m = shapes.model;
  return nlohmann::json{{"x", m.x},
                        {"out_channels", m.out_channels},
                        {"classes", m.classes},
                        {"text_width", m.text_width},
                        {"data", data}}
      .dump();
}

SavedShapes saved_shapes(const std::string& text, const std::string& where) {
  const auto json = formats::parse_json(text, where, ErrorKind::checkpoint);
  try {
    SavedShapes shapes{{json.at("x").get<std::vector<int64_t>>(), json.at("out_channels").get<int64_t>(),
                        json.at("classes").get<int64_t>(), json.at("text_width").get<int64_t>()},
                       {}};
    for (const auto& tensor : json.at("data"))
      shapes.data.push_back({tensor.at("name").get<std::string>(),
                             static_cast<at::ScalarType>(tensor.at("dtype").get<int>()),
                             tensor.at("shape").get<std::vector<int64_t>>(), tensor.at("range").get<std::string>()});
    return shapes;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::checkpoint, where, std::string("the model's shapes cannot be read: ") + error.what());
  }
}

std::shared_ptr<OpTable> make_op_table(const Recipe& recipe, Registry& registry, Log log) {
  std::vector<KernelRow> rows;
  for (const auto& id : recipe.plugins.kernels) {
    const auto& factory = registry.factory<KernelSet>(id, recipe.name);
    OptionReader none(OptionMap{"kernels", recipe.name, {}});
    const auto set = guarded("kernels '" + id + "', being made", [&] { return factory.make(none, {}); });
    for (auto& row : set->rows()) rows.push_back(std::move(row));
  }
  return std::make_shared<OpTable>(std::move(rows), recipe.kernels, std::move(log));
}

void require(const Recipe& recipe, const Component& component, const std::string& section) {
  if (!component)
    throw Error(ErrorKind::config, recipe.name, "has no section [" + section + "]",
                "add it, with plugin = \"…\"; see `ditto plugins list`");
}

void refuse_pair(const Recipe& recipe, const Sampler& sampler, const Scheduler& scheduler) {
  const auto why = sampler.refuses(scheduler);
  if (!why.empty())
    throw Error(ErrorKind::config, recipe.sampler.where,
                "sampler \"" + recipe.sampler.plugin + "\" does not go with scheduler \"" + recipe.scheduler.plugin +
                    "\": " + why,
                "choose another sampler; see `ditto plugins list`");
}

namespace {

// Before a run trains up to its first grid, or computes samples, that nobody could give or see.
void refuse_samples(const Recipe& recipe, const Model& model, const std::string& no_pictures) {
  const auto refuse = [&](const std::string& found, const char* remedy) {
    throw Error(ErrorKind::config, recipe.model.where, "model \"" + recipe.model.plugin + "\" " + found, remedy);
  };
  for (const auto& input : model.spec())
    if (input.name != "x" && input.name != "t" && input.name != "label")
      refuse("takes \"" + input.name + "\", and a sample is asked for by its seed and class alone",
             "train it with validate.grid_every = 0; it cannot be sampled from yet");
  if (!no_pictures.empty())
    refuse(no_pictures, "train it with validate.grid_every = 0, and sample it with --save-latents");
}

}  // namespace

Assembly::Assembly(Recipe& recipe_, Registry& registry, const Mesh& mesh_, const AssemblyParts& parts, Log log)
    : recipe(recipe_), mesh(mesh_), registry_(registry), log_(std::move(log)) {
  if (parts.saved) {
    spec = parts.saved->model;
    data_spec_ = parts.saved->data;
  }
  if (parts.data) open_data();
  if (parts.data && parts.opened) parts.opened(*train_data, validation_data.get());
  if (parts.data || recipe.image_encoder) make_encoders();
  if (recipe.scheduler) scheduler = make<Scheduler>("scheduler", recipe.scheduler, {});
  if (!parts.saved && scheduler) spec.out_channels = scheduler->out_channels(spec.x.at(0));
  table = make_op_table(recipe, registry_, log_);
  make_model(parts);
  if (parts.objective) {
    require(recipe, recipe.objective, "objective");
    objective = make<Objective>("objective", recipe.objective, {model.get(), scheduler.get()});
    if (parts.data) refuse_unmade_inputs();
  }
  if (parts.sampler || recipe.sampler) {
    require(recipe, recipe.sampler, "sampler");
    require(recipe, recipe.scheduler, "scheduler");
    sampler = make<Sampler>("sampler", recipe.sampler, {});
    refuse_pair(recipe, *sampler, *scheduler);
  }
  if (parts.sampler) refuse_samples(recipe, *model, parts.latents ? "" : no_pictures());
  make_strategies();
}

template <class Interface>
std::shared_ptr<Interface> Assembly::make(const std::string& section, Component& component,
                                          const typename Interface::Needs& needs) {
  const auto& factory = registry_.factory<Interface>(component.plugin, component.where);
  OptionReader reader(component.options);
  about_to_make(Interface::kKind, component.plugin);
  auto made = guarded(std::string(Interface::kKind) + " '" + component.plugin + "', being made",
                      [&] { return factory.make(reader, needs); });
  recipe.resolve(section, component.plugin, reader.declared());
  return made;
}

void Assembly::about_to_make(std::string_view kind, const std::string& id) const {
  if (log_) log_("making " + plugin_name(kind, id));
}

void Assembly::open_data() {
  require(recipe, recipe.data, "data");
  train_data = make<Source>("data", recipe.data, {SplitOf::train, recipe.run.folder});
  data_spec_ = train_data->spec();
  if (recipe.validate.every > 0)
    validation_data = make<Source>("data", recipe.data, {SplitOf::validation, recipe.run.folder});
}

void Assembly::make_encoders() {
  require(recipe, recipe.image_encoder, "encoder.image");
  Encoder::Needs needs;
  needs.data = data_spec_;
  encoders.push_back(make<Encoder>("encoder.image", recipe.image_encoder, needs));
  if (recipe.text_encoder) encoders.push_back(make<Encoder>("encoder.text", recipe.text_encoder, needs));
  if (!train_data) return;
  for (const auto& tensor : data_spec_)
    if (tensor.name == "text") spec.text_width = tensor.shape.back();  // embedded beforehand
  for (const auto& encoder : encoders)
    for (const auto& tensor : encoder->spec()) {
      if (tensor.name == "clean") spec.x = tensor.shape;
      if (tensor.name == "text") spec.text_width = tensor.shape.back();
    }
  spec.classes = train_data->classes();
  spec.out_channels = spec.x.at(0);
}

void Assembly::make_model(const AssemblyParts& parts) {
  require(recipe, recipe.model, "model");
  ctx = std::make_unique<Context>(table, Random(static_cast<uint64_t>(recipe.run.seed)));
  ctx->compute = compute_dtype(recipe.run);
  ctx->device = torch::Device(recipe.run.device);
  model = make<Model>("model", recipe.model, spec);
  computing_ = plugin_name(Model::kKind, recipe.model.plugin) + ", computing";
  if (ctx->compute == torch::kDouble) model->to(torch::kDouble);
  if (parts.weights) initialise(*model, ctx->random);
  model->to(ctx->device);
  layout = Layout::of(*model);
  for (const auto& entry : layout.entries) parameters_ += c10::multiply_integers(entry.full_shape);
}

namespace {

std::string join(const std::string& who, const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? who + ": " : ", ") + name;
  return text.empty() ? who + ": nothing" : text;
}

}  // namespace

// A model may look whether an input is there, and would train without what its recipe was written for.
void Assembly::refuse_unmade_inputs() const {
  std::set<std::string> from_data, from_encoders, from_objective;
  for (const auto& tensor : data_spec_) from_data.insert(tensor.name);
  for (const auto& encoder : encoders)
    for (const auto& tensor : encoder->spec()) from_encoders.insert(tensor.name);
  if (from_encoders.count("clean")) from_data.erase("image");  // what is encoded is gone
  for (const auto& tensor : objective->makes()) from_objective.insert(tensor.name);
  if (scheduler) from_objective.insert({"x", "t", "x_t", "time"});
  for (const auto& input : model->spec()) {
    if (from_data.count(input.name) || from_encoders.count(input.name) || from_objective.count(input.name)) continue;
    throw Error(ErrorKind::config, recipe.model.where,
                "model \"" + recipe.model.plugin + "\" takes \"" + input.name + "\", and nobody makes it",
                join("the data makes", from_data) + "; " + join("encoders", from_encoders) + "; " +
                    join("the objective and its schedule", from_objective) +
                    "; choose data, an encoder or an objective that makes it, or another model");
  }
}

// The axes in the order of sharding, and which plugin serves each; then those that serve none.
void Assembly::make_strategies() {
  const auto& p = recipe.parallel;
  const std::vector<std::pair<Axis, std::string>> served{
      {Axis::pipeline, p.pipeline_plugin}, {Axis::tensor, p.tensor_plugin}, {Axis::expert, p.expert_plugin},
      {Axis::context, p.context_plugin},   {Axis::shard, p.shard_plugin},   {Axis::replicate, p.replicate_plugin}};
  for (const auto& [axis, id] : served)
    if (p.serves(name(axis), mesh.size(axis))) load_strategy(id, std::string("parallel.") + name(axis), axis);
  if (p.recompute != "none") load_strategy("recompute", "parallel.recompute", std::nullopt);
  if (p.offload != "none") load_strategy("offload", "parallel.offload", std::nullopt);
  refuse_unread_options(recipe, registry_);

  for (auto& strategy : strategies) strategy->claim(layout);
  for (auto& strategy : strategies) strategy->shard(layout);
  whole_ = make_whole_tensors(layout, mesh);

  run_ = [this](const Unit& unit, UnitCall& call) { run_unit(unit, call); };
  // Recompute stands inside of what gathers parameters, and outside of what exchanges tokens and activations.
  const std::vector<std::optional<Axis>> order{Axis::tensor, Axis::expert,    Axis::context, std::nullopt,
                                               Axis::shard,  Axis::replicate, Axis::pipeline};
  for (const auto& axis : order)
    for (auto& strategy : strategies)
      if (strategy->axis() == axis) wraps_.push_back(strategy.get());
  ctx->unit_runner = [](Linear&, Linear&, const Tensor& x, const std::function<Tensor(const Tensor&)>& run) {
    return run(x);
  };
  ctx->token_gather = [](const Tensor& x, const Stream&) { return x; };
  for (auto* strategy : wraps_) {
    run_ = strategy->wrap_unit(run_);
    ctx->attention_op = strategy->wrap_attention(ctx->attention_op);
    ctx->unit_runner = strategy->wrap_attention_unit(ctx->unit_runner);
    ctx->token_gather = strategy->wrap_token_gather(ctx->token_gather);
  }
  publish();
}

void Assembly::load_strategy(const std::string& id, const std::string& key, std::optional<Axis> axis) {
  if (id.empty())
    throw Error(ErrorKind::config, recipe.name,
                key + " = " + std::to_string(mesh.size(*axis)) + ", but no plugin serves this axis",
                "set " + key + "_plugin; see `ditto plugins list`");
  const auto& factory = registry_.factory<ParallelStrategy>(id, recipe.name);
  OptionReader reader(strategy_options(recipe, factory));
  about_to_make(ParallelStrategy::kKind, id);
  strategies.push_back(guarded("strategy '" + id + "', being made", [&] {
    return factory.make(reader, {&mesh, recipe.run.deterministic, model->token_local(), ctx->compute, model->depth()});
  }));
  recipe.resolve("parallel", {}, reader.declared());
  if (strategies.back()->axis() != axis)
    throw Error(ErrorKind::config, recipe.name, key + "_plugin = \"" + id + "\" serves another axis",
                "see `ditto plugins list`");
}

bool Assembly::in_step() const {
  return std::any_of(strategies.begin(), strategies.end(), [](const auto& strategy) { return strategy->in_step(); });
}

void Assembly::publish() {
  torch::NoGradGuard no_grad;
  // A fused update is not seen by version counters, which tell compute copies to follow.
  for (auto& entry : layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
  for (auto& strategy : strategies) strategy->publish();
}

void Assembly::run_unit(const Unit& unit, UnitCall& call) {
  const Doing doing(computing_.c_str());
  guarded([&] { return to_text(unit) + " of model '" + recipe.model.plugin + "'"; },
          [&] {
            switch (unit.kind) {
              case Unit::condition: call.stream.condition = model->condition(call.batch, call.ctx); break;
              case Unit::tokens: {
                auto stream = model->tokens(call.batch, call.ctx);
                stream.condition = std::move(call.stream.condition);
                call.stream = std::move(stream);
                model->constants(call.batch, call.stream, call.ctx);
                break;
              }
              case Unit::Kind::block:
                call.stream = model->run_block(unit.block, std::move(call.stream), call.ctx);
                break;
              case Unit::head: call.prediction = model->head(call.stream, call.ctx); break;
            }
          });
}

Stream Assembly::begin(const Batch& batch) {
  Stream stream;
  Tensor none;
  UnitCall call{batch, stream, none, *ctx};
  run_(Unit{Unit::condition}, call);
  run_(Unit{Unit::tokens}, call);
  for (auto it = wraps_.rbegin(); it != wraps_.rend(); ++it) (*it)->split(stream);
  return stream;
}

void Assembly::blocks(int64_t first, int64_t last, Stream& stream) {
  const Batch batch;  // blocks read the stream alone
  Tensor none;
  UnitCall call{batch, stream, none, *ctx};
  for (int64_t i = first; i < last; ++i) run_(Unit{Unit::Kind::block, i}, call);
}

// What a later stage makes by itself; the rest of its stream has come, split, from the stage before.
void Assembly::constants(const Batch& batch, Stream& stream) {
  Stream own;
  own.grid = stream.grid;
  own.packing = stream.packing;
  model->constants(batch, own, *ctx);
  for (auto it = wraps_.rbegin(); it != wraps_.rend(); ++it) (*it)->split(own);
  stream.rotary_TK = own.rotary_TK;
  for (auto& [name, field] : own.extra) stream.extra[name] = std::move(field);
}

Tensor Assembly::head(Stream& stream, const Batch& batch) {
  for (auto* strategy : wraps_) strategy->join(stream);
  Tensor prediction;
  UnitCall call{batch, stream, prediction, *ctx};
  run_(Unit{Unit::head}, call);
  check_prediction(batch, prediction);
  return prediction;
}

// A wrong number of channels might be broadcast over the target's.
void Assembly::check_prediction(const Batch& batch, const Tensor& prediction) const {
  auto expected = batch.at("x").sizes().vec();
  expected.at(1) = spec.out_channels;
  if (prediction.defined() && prediction.sizes() == at::IntArrayRef(expected)) return;
  throw Error(ErrorKind::plugin, "head of model '" + recipe.model.plugin + "'",
              "gave " + (prediction.defined() ? to_text(OptionValue(prediction.sizes().vec())) : "nothing") +
                  ", expected " + to_text(OptionValue(expected)) +
                  ": samples, ModelSpec::out_channels, and the sizes of x",
              "correct head(), or its output layer");
}

Program Assembly::program() {
  Program program;
  program.begin = [this](const Batch& batch) { return begin(batch); };
  program.constants = [this](const Batch& batch, Stream& stream) { constants(batch, stream); };
  program.blocks = [this](int64_t first, int64_t last, Stream& stream) { blocks(first, last, stream); };
  program.head = [this](Stream& stream, const Batch& batch) { return head(stream, batch); };
  program.backward = [this](const Tensors& roots, const Tensors& gradients) {
    const Traffic::Scope pass(mesh.traffic(), Traffic::Pass::backward);
    torch::autograd::backward(roots, gradients);
  };
  return program;
}

Tensor Assembly::predict(const Batch& batch) {
  auto whole = program();
  return predict(batch, whole);
}

Tensor Assembly::predict(const Batch& batch, Program& program) {
  const Traffic::Scope pass(mesh.traffic(), Traffic::Pass::forward);
  if (!torch::GradMode::is_enabled())
    for (auto& strategy : strategies)
      if (auto prediction = strategy->predict(batch, program)) return *prediction;
  auto stream = program.begin(batch);
  program.blocks(0, model->depth(), stream);
  return program.head(stream, batch);
}

Batch Assembly::encode(Batch batch) const {
  torch::NoGradGuard no_grad;
  for (const auto& encoder : encoders) batch = encoder->encode(std::move(batch));
  if (ctx->compute == torch::kDouble)  // a proof is in double precision from end to end
    for (auto& [name, tensor] : batch.tensors)
      if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
  return batch;
}

void Assembly::set_input(Batch& batch, const Tensor& x_t, const Tensor& time_B) const {
  batch["x"] = scheduler->model_input(x_t, time_B);
  batch["t"] = scheduler->c_noise(time_B).to(torch::kFloat).to(ctx->device);
}

Tensor Assembly::decode(const Tensor& clean) const {
  return encoders.empty() ? clean : encoders.front()->decode(clean);
}

std::string Assembly::no_pictures() const {
  if (spec.x.size() != 3) return "makes videos, and samples are written as pictures";
  torch::NoGradGuard no_grad;
  const auto channels = decode(torch::zeros({1, spec.x[0], spec.x[1], spec.x[2]}, ctx->device)).size(1);
  if (channels == 1 || channels == 3) return {};
  return "makes latents of " + std::to_string(channels) +
         " channels, which no decoder of this recipe turns into pictures";
}

}  // namespace ditto
