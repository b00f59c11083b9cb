#include "core/network/running_encoder.h"

#include <algorithm>
#include <filesystem>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/data/names.h"
#include "core/exchange/foreign.h"
#include "core/network/foreign_model.h"

namespace ditto {

using torch::Tensor;

namespace {

namespace fs = std::filesystem;

// Of the options that both declare. The model that was trained and the encoder are of one id.
void take_options_of_run(EncoderWeights& found, const NetworkSection& section, const Factory<Encoder>& factory) {
  const auto& model = found.saved->recipe.model;
  auto& component = found.component;
  if (model.plugin != component.plugin)
    throw Error(ErrorKind::config, component.where,
                section.section() + ".weights names " + found.saved->path + ", where model \"" + model.plugin +
                    "\" has trained, and the encoder is \"" + component.plugin + "\"",
                "name a run that trained model \"" + component.plugin + "\", or another encoder");
  OptionReader declares({component.options.section, component.where, {}});
  guarded(plugin_name(Encoder::kKind, component.plugin) + ", its options", [&] { factory.declare(declares); });
  for (const auto& option : declares.declared())
    if (const auto said = model.options.given.find(option.name); said != model.options.given.end())
      take_option(component.options, option.name, said->second, section.section(), found.saved->path);
}

void look_at_file(EncoderWeights& found, Components& components, const NetworkSection& section,
                  const Factory<Encoder>& factory) {
  const auto weights =
      checkpoint::look_at_weights(section.weights, section.format, which_of(section),
                                  factory.foreign_classes ? factory.foreign_classes() : checkpoint::Classes());
  found.file = weights.shapes.file;
  found.folder = fs::path(found.file).parent_path().string();
  found.reading = weights.reading;
  auto& component = found.component;
  if (factory.foreign_needs)
    (void)read_foreign(components.recipe, component.options, factory, weights.shapes,
                       plugin_name(Encoder::kKind, component.plugin));
}

// Where they are not `read`, what the section names may not be there, and then says nothing. Throws Error(config) where
// recipe and weights disagree, naming both; Error(checkpoint).
EncoderWeights look_at_weights(Components& components, const NetworkSection& section, FrozenWeights weights) {
  EncoderWeights found{section.component, {}, {}, {}, {}};
  if (section.weights.empty()) return found;
  std::error_code ignored;
  const bool is_folder = fs::is_directory(section.weights, ignored);
  found.folder = is_folder ? section.weights : fs::path(section.weights).parent_path().string();
  if (weights == FrozenWeights::read)
    require_weights(section);
  else if (!fs::exists(section.weights, ignored))
    return found;
  const auto& factory = components.registry.factory<Encoder>(section.component.plugin, section.component.where);
  if (section.format.empty() && checkpoint::is_of_a_run(section.weights)) {
    found.saved = open_saved(section.weights, {});
    found.folder = found.saved->path;
    take_options_of_run(found, section, factory);
  } else {
    look_at_file(found, components, section, factory);
  }
  return found;
}

}  // namespace

RunningUnits::Setting RunningEncoder::setting_of(const NetworkSection& section, const Surroundings& around) {
  Setting setting{section.section(), section.component};
  setting.compute = section.precision.empty() ? around.compute : dtype_of(section.precision);
  setting.device = around.device;
  setting.seed = around.seed ^ number_of(setting.section);  // two encoders of one plugin draw other numbers
  setting.trains = false;
  setting.copied = copied_axes(section, {Axis::pipeline, Axis::context});
  return setting;
}

RunningEncoder::RunningEncoder(Components& components, const NetworkSection& from, const TensorSpecs& inputs,
                               const Surroundings& around)
    : RunningUnits(around.mesh, around.table, setting_of(from, around)),
      section(from.section()),
      found(look_at_weights(components, from, around.device.is_meta() ? FrozenWeights::none : around.weights)),
      encoder(components.make<Encoder>(section, found.component,
                                       {inputs, found.folder,
                                        around.weights == FrozenWeights::files ||
                                            (around.weights == FrozenWeights::read && !around.device.is_meta())})),
      in_doubles_(around.compute == torch::kDouble),
      computing_(plugin_name(Encoder::kKind, from.component.plugin) + ", computing"),
      units_(*ctx, [](const Unit&, UnitCall& call) { call.body(); }) {
  const auto who = "encoder \"" + from.component.plugin + "\"";
  if (encoder->parameters().empty()) {
    if (!from.weights.empty())
      throw Error(ErrorKind::config, from.component.where,
                  who + " has no parameters, and [" + section + "] names weights for it", "leave weights out");
    return;
  }
  if (from.weights.empty())
    throw Error(ErrorKind::config, from.component.where,
                who + " has parameters, and [" + section + "] names no weights for them",
                "add weights = \"…\": a safetensors file, a folder with one or with model.safetensors.index.json, or a "
                ".pt; and the format that it is in, where its names are not the encoder's own; or a run that trained "
                "it");
  take(*encoder);
  if (around.weights == FrozenWeights::room || around.weights == FrozenWeights::read)
    cut_and_fill(components, from, around);
}

void RunningEncoder::cut_and_fill(Components& components, const NetworkSection& from, const Surroundings& around) {
  const bool reads = around.weights == FrozenWeights::read && !around.device.is_meta();
  Shape shape;
  shape.whose = plugin_name(Encoder::kKind, from.component.plugin);
  shape.streams = false;
  for (const auto& entry : layout.entries) shape.depth = std::max(shape.depth, entry.unit.block + 1);
  cut(components, shape, [this](ParallelStrategy& strategy) { units_.wrap(strategy); });
  ctx->unit_wrap = [this](const Unit& unit, const std::function<Tensor()>& body) { return run_unit(unit, body); };
  fill(Weights::room);
  if (!reads) return;
  if (found.saved) load_weights(*found.saved, from.which, *this);
  fingerprint_ = encoder->fingerprint() + ", weights " +
                 (found.saved ? fingerprint_of(*found.saved, from.which)
                              : load_foreign_weights(*encoder, from, found.file, found.reading, *this, around.mesh));
}

Tensor RunningEncoder::run_unit(const Unit& unit, const std::function<Tensor()>& body) {
  constexpr const char* kMade = "made";
  const Batch none;
  Stream stream;
  Outputs outputs;
  UnitCall call{none, stream, outputs, *ctx, [&] { outputs[kMade] = body(); }};
  units_.run(unit, call);
  return outputs.at(kMade);
}

Batch RunningEncoder::run(Phase phase, Batch batch, const TensorSpecs& makes,
                          Batch (Encoder::*part)(Batch, Context&) const, const char* what) const {
  const torch::NoGradGuard no_grad;
  const Doing doing(computing_.c_str());
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
  const auto place = [this] { return section + ", encoding"; };
  ctx->phase = phase;
  batch = guarded(place, [&] { return ((*encoder).*part)(std::move(batch), *ctx); });
  for (const auto& spec : makes) {
    const auto made = batch.tensors.find(spec.name);
    if (made == batch.tensors.end() || !made->second.defined())
      throw Error(ErrorKind::plugin, place(), "has not made \"" + spec.name + "\"",
                  std::string("an encoder's ") + what + " says");
    if (!in_doubles_ && made->second.is_floating_point()) made->second = made->second.to(spec.dtype);
  }
  return batch;
}

Batch RunningEncoder::precompute(Batch batch) {
  const auto caches = encoder->caches();
  for (const auto& spec : caches) batch.lengths.erase(spec.name);  // it says those of what it makes
  batch = run(Phase::evaluate, std::move(batch), caches, &Encoder::precompute, "precompute() makes what its caches()");
  for (const auto& spec : encoder->takes())
    if (!is_text(spec) && !find(caches, spec.name)) batch.tensors.erase(spec.name);
  return batch;
}

Batch RunningEncoder::encode(Batch batch, Phase phase) {
  const auto caches = encoder->caches(), makes = encoder->makes();
  for (const auto& spec : makes)
    if (!find(caches, spec.name)) batch.lengths.erase(spec.name);
  batch = run(phase, std::move(batch), makes, &Encoder::encode, "encode() makes what its makes()");
  for (const auto& spec : caches)
    if (!find(makes, spec.name)) batch.tensors.erase(spec.name);
  return batch;
}

Tensor RunningEncoder::decode(const Tensor& clean) {
  const torch::NoGradGuard no_grad;
  const Doing doing(computing_.c_str());
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
  const auto place = [this] { return section + ", decoding"; };
  ctx->phase = Phase::evaluate;
  auto made = guarded(place, [&] { return encoder->decode(clean, *ctx); });
  const auto said = encoder->decoded(clean.sizes().slice(1).vec());
  if (made.dim() == 0 || made.sizes().slice(1) != at::IntArrayRef(said))
    throw Error(ErrorKind::plugin, place(),
                "its decode() made " + to_text(TensorSpec{names::kClean, made.scalar_type(), made.sizes().vec()}) +
                    ", and its decoded() says " + to_text(TensorSpec{names::kClean, made.scalar_type(), said}) +
                    " of a sample",
                "decoded() says what decode() makes");
  return made;
}

}  // namespace ditto
