#include "core/network/running_encoder.h"

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/network/foreign_model.h"

namespace ditto {

using torch::Tensor;

RunningUnits::Setting RunningEncoder::setting_of(const NetworkSection& section, const Surroundings& around) {
  Setting setting{section.section(), section.component};
  setting.compute = section.precision.empty() ? around.compute : dtype_of(section.precision);
  setting.device = around.device;
  setting.seed = around.seed;
  setting.trains = false;
  setting.copied = copied_axes(section, {Axis::pipeline, Axis::context});
  return setting;
}

RunningEncoder::RunningEncoder(Components& components, const NetworkSection& from, const TensorSpecs& inputs,
                               const Surroundings& around)
    : RunningUnits(around.mesh, around.table, setting_of(from, around)),
      section(from.section()),
      encoder(components.make<Encoder>(section, from.component, {inputs})),
      in_doubles_(around.compute == torch::kDouble),
      computing_(plugin_name(Encoder::kKind, from.component.plugin) + ", computing"),
      units_(*ctx, [](const Unit&, UnitCall& call) { call.body(); }) {
  ctx->phase = Phase::evaluate;
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
                ".pt; and the format that it is in, where its names are not the encoder's own");
  take(*encoder);
  if (around.weights != FrozenWeights::none) cut_and_fill(components, from, around);
}

void RunningEncoder::cut_and_fill(Components& components, const NetworkSection& from, const Surroundings& around) {
  const bool reads = around.weights == FrozenWeights::read && !around.device.is_meta();
  if (reads) require_weights(from);
  Shape shape;
  shape.streams = false;
  for (const auto& entry : layout.entries) shape.depth = std::max(shape.depth, entry.unit.block + 1);
  cut(components, shape, [this](ParallelStrategy& strategy) { units_.wrap(strategy); });
  ctx->unit_wrap = [this](const Unit& unit, const std::function<Tensor()>& body) { return run_unit(unit, body); };
  fill(Weights::room);
  if (reads)
    fingerprint_ = encoder->fingerprint() + ", weights " + load_foreign_weights(*encoder, from, *this, around.mesh);
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

Batch RunningEncoder::encode(Batch batch) {
  const torch::NoGradGuard no_grad;
  const Doing doing(computing_.c_str());
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
  const auto place = [this] { return section + ", encoding"; };
  for (const auto& spec : encoder->makes()) batch.lengths.erase(spec.name);  // it may say those of what it makes
  batch = guarded(place, [&] { return encoder->encode(std::move(batch), *ctx); });
  for (const auto& spec : encoder->makes()) {
    const auto made = batch.tensors.find(spec.name);
    if (made == batch.tensors.end() || !made->second.defined())
      throw Error(ErrorKind::plugin, place(), "has not made \"" + spec.name + "\"",
                  "an encoder's encode() makes what its makes() says");
    if (!in_doubles_ && made->second.is_floating_point()) made->second = made->second.to(spec.dtype);
  }
  return batch;
}

Tensor RunningEncoder::decode(const Tensor& clean) {
  const torch::NoGradGuard no_grad;
  const Doing doing(computing_.c_str());
  const Traffic::Scope pass(mesh().traffic(), Traffic::Pass::forward);
  return guarded([this] { return section + ", decoding"; }, [&] { return encoder->decode(clean, *ctx); });
}

}  // namespace ditto
