#include "core/sample/handed.h"

#include <algorithm>
#include <functional>
#include <set>

#include "core/data/names.h"

namespace ditto {

namespace {

using Shape = std::vector<int64_t>;

// What an encoder makes of the model's conditions; none: it is not one that is run on what is handed in.
TensorSpecs made_conditions(const Encoder& encoder, const TensorSpecs& conditions) {
  const auto takes = encoder.takes();
  if (takes.empty() || std::any_of(takes.begin(), takes.end(), is_text)) return {};
  TensorSpecs made;
  for (const auto& spec : encoder.makes())
    if (find(conditions, spec.name)) made.push_back(spec);
  return made;
}

// An encoder completes what is there: it has what it takes, and something that it makes is wanted and not there.
bool completes(const TensorSpecs& takes, const TensorSpecs& made, const Batch& there) {
  const auto is_there = [&](const TensorSpec& spec) { return there.has(spec.name); };
  return !made.empty() && std::all_of(takes.begin(), takes.end(), is_there) &&
         !std::all_of(made.begin(), made.end(), is_there);
}

// Those that will run on what is given, in turn, and what each makes; by names alone.
void for_each_that_completes(const Networks& networks, const Batch& given,
                             const std::function<void(const Encoder&, const TensorSpecs& made)>& visit) {
  const auto conditions = networks.conditions();
  Batch there;
  for (const auto& [name, tensor] : given.tensors) there[name] = tensor;
  for (const auto& encoder : networks.encoders) {
    const auto made = made_conditions(*encoder->encoder, conditions);
    if (!completes(encoder->encoder->takes(), made, there)) continue;
    for (const auto& spec : made) there[spec.name] = torch::Tensor();
    visit(*encoder->encoder, made);
  }
}

bool is_picture(const TensorSpec& spec, const Shape& like) {
  return spec.shape.size() == like.size() && spec.shape.size() > 2 && spec.dtype == at::kFloat;
}

}  // namespace

Shape shape_of_whole(const Networks& networks) {
  auto shape = networks.shape_of_one();
  for (const auto& encoder : networks.encoders) {
    const auto makes = encoder->encoder->makes(), takes = encoder->encoder->takes();
    const auto* part = find(makes, names::kClean);
    const auto whole =
        std::find_if(takes.begin(), takes.end(), [&](const auto& spec) { return is_picture(spec, shape); });
    // An autoencoder's latents are fewer than its picture's pixels, and of all of it.
    if (!part || whole == takes.end() || encoder->encoder->decoded(part->shape) != part->shape) continue;
    for (size_t d = 1; d < shape.size(); ++d)
      if (part->shape[d] > 0 && whole->shape[d] > part->shape[d])
        shape[d] = shape[d] * whole->shape[d] / part->shape[d];
  }
  return shape;
}

TensorSpecs handed_specs(const Networks& networks, const Shape& shape) {
  const auto conditions = networks.conditions();
  auto specs = conditions;
  for (const auto& encoder : networks.encoders)
    if (!made_conditions(*encoder->encoder, conditions).empty())
      for (const auto& spec : encoder->encoder->takes())
        if (!find(specs, spec.name)) specs.push_back(spec);
  const auto& own = networks.shape_of_one();
  for (auto& spec : specs) {
    if (!is_picture(spec, own)) continue;
    for (size_t d = 1; d < own.size(); ++d)
      if (spec.shape[d] > 0 && own[d] > 0 && spec.shape[d] * shape[d] % own[d] == 0)
        spec.shape[d] = spec.shape[d] * shape[d] / own[d];
  }
  return specs;
}

TensorSpecs completed_specs(const Networks& networks, const Batch& given) {
  TensorSpecs all;
  for_each_that_completes(networks, given, [&](const Encoder&, const TensorSpecs& made) {
    for (const auto& spec : made)
      if (!find(all, spec.name)) all.push_back(spec);
  });
  return all;
}

std::vector<std::string> unused_names(const Networks& networks, const Batch& given) {
  std::set<std::string> used;
  for (const auto& spec : networks.conditions()) used.insert(spec.name);
  for_each_that_completes(networks, given, [&](const Encoder& encoder, const TensorSpecs&) {
    for (const auto& spec : encoder.takes()) used.insert(spec.name);
  });
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : given.tensors)
    if (!used.count(name)) unused.push_back(name);
  return unused;
}

Batch completed(Networks& networks, Batch given, int64_t series) {
  const auto conditions = networks.conditions();
  for (const auto& encoder : networks.encoders) {
    const auto made = made_conditions(*encoder->encoder, conditions);
    if (!completes(encoder->encoder->takes(), made, given)) continue;
    auto& random = encoder->ctx->random;
    const auto own = random;
    if (series > 0) random = Random(own.seed() ^ number_of("series " + std::to_string(series)));
    given = encoder->encode(encoder->precompute(std::move(given)), Phase::sample);
    random = own;
  }
  std::erase_if(given.tensors, [&](const auto& one) { return !find(conditions, one.first); });
  return given;
}

}  // namespace ditto
