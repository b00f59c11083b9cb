#include "core/plan/cascade_stages.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <ditto/error.h>

#include "core/assembly/assembly.h"
#include "core/mesh/paper_mesh.h"
#include "core/process/launch.h"

namespace ditto {

namespace {

using Names = std::set<std::string>;

bool any_in(const TensorSpecs& specs, const Names& names) {
  return std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) { return names.count(spec.name) > 0; });
}

void add(Names& names, const TensorSpecs& specs) {
  for (const auto& spec : specs) names.insert(spec.name);
}

// The same of the whole picture, where an encoder that makes `passes` learns on crops: by how much what it takes is
// larger than what it makes beside that.
std::vector<int64_t> of_whole(std::vector<int64_t> shape, const TensorSpecs& takes, const TensorSpecs& makes,
                              const std::string& passes) {
  const auto picture = [&](const TensorSpec& spec) { return spec.shape.size() == shape.size() && spec.name != passes; };
  const auto whole = std::find_if(takes.begin(), takes.end(), picture);
  const auto left = std::find_if(makes.begin(), makes.end(), picture);
  if (whole == takes.end() || left == makes.end()) return shape;
  for (size_t d = 1; d < shape.size(); ++d) {
    const auto side = whole->shape[d], cut = left->shape[d];
    if (side > 0 && cut > 0 && shape[d] > 0 && shape[d] * side % cut != 0)
      throw Error(ErrorKind::config, "\"" + passes + "\"",
                  fmt::format("is of {} of {} pixels of a part, and of a whole picture of {} that is no whole number",
                              shape[d], cut, side),
                  "choose the sizes of part and small picture so that the whole is enlarged by as much as its parts");
    shape[d] = side > 0 && cut > 0 && shape[d] > 0 ? shape[d] * side / cut : kOwnSide;
  }
  return shape;
}

// What follows from the tensor that is passed, and what it is.
class Passed {
 public:
  Passed(Networks& networks, const std::string& name) : networks_(networks), names_{name} {
    const auto& data = networks.shapes().data;
    TensorSpecs there = data;
    if (const auto* of_data = find(data, name)) passed_ = of_data->shape;
    for (const auto& encoder : networks.encoders) {
      auto takes = encoder->encoder->takes();
      const auto makes = encoder->encoder->makes();
      taken_ = taken_ || any_in(takes, names_);
      if (any_in(takes, names_)) add(names_, makes);
      for (auto& spec : takes)  // an encoder may say of it that any will do
        if (const auto* known = find(there, spec.name)) spec = *known;
      if (const auto* made = find(makes, name); made && !passed_) {
        scale_ = [takes, makes, name](const auto& shape) { return of_whole(shape, takes, makes, name); };
        passed_ = scale_(made->shape);
      }
      for (const auto& spec : makes) {
        std::erase_if(there, [&](const TensorSpec& one) { return one.name == spec.name; });
        there.push_back(spec);
      }
    }
    taken_ = taken_ || any_in(networks.main->model->takes(), {name});
  }

  StageTensors tensors(const Recipe& recipe) const {
    StageTensors stage;
    stage.picture = networks_.decoded_shape(networks_.shape_of_one());
    if (scale_) stage.picture = scale_(stage.picture);
    stage.makes_passed = passed_.has_value();
    if (passed_ && taken_) stage.passed = *passed_;
    const auto& offered = networks_.main->setting.needs.inputs;
    for (auto asked : networks_.conditions()) {
      const auto* there = find(offered, asked.name);
      if (!there || names_.count(asked.name) || find(networks_.empty_text_specs(), asked.name)) continue;
      auto spec = *there;
      for (size_t d = 0; d < spec.shape.size() && spec.shape.size() == asked.shape.size(); ++d)
        if (spec.shape[d] < 0) spec.shape[d] = asked.shape[d];
      stage.asked.push_back(std::move(spec));
    }
    add_text_encoders(recipe, stage);
    return stage;
  }

 private:
  // Also those whose tensors another encoder takes.
  void add_text_encoders(const Recipe& recipe, StageTensors& stage) const {
    Names of_texts;
    for (const auto& spec : networks_.shapes().data)
      if (is_text(spec)) of_texts.insert(spec.name);
    for (const auto& encoder : networks_.encoders) {
      const auto makes = encoder->encoder->makes();
      if (!any_in(encoder->encoder->takes(), of_texts)) continue;
      const auto* section = recipe.resolved().find_path(encoder->section);
      for (const auto& spec : makes)
        if (section && section->as<formats::Table>())
          stage.text_encoders.emplace(spec.name, *section->as<formats::Table>());
      add(of_texts, makes);
    }
  }

  Networks& networks_;
  Names names_;                                 // the passed tensor, and what encoders make of it
  std::optional<std::vector<int64_t>> passed_;  // the shape of the whole
  std::function<std::vector<int64_t>(const std::vector<int64_t>&)> scale_;
  bool taken_ = false;
};

StageTensors tensors_of(Recipe recipe, Registry& registry, const std::string& passes) {
  recipe.run.device = "meta";
  recipe.run.transport.clear();
  recipe.validate.every = 0;
  const PaperMesh mesh(complete_degrees({}, 1), {}, PaperMesh::Peers::alike);
  const ShapesAlone no_numbers;
  AssemblyParts parts;
  parts.data = parts.shapes_only = true;
  parts.weights = RunningModel::Weights::room;
  parts.frozen = FrozenWeights::room;
  Assembly assembly(recipe, registry, mesh, parts, Log());
  return Passed(*assembly.networks, passes).tensors(recipe);
}

}  // namespace

std::vector<OpenedStage> open_stages(const Cascade& cascade, Registry& registry) {
  std::vector<OpenedStage> stages;
  for (const auto& stage : cascade.stages) {
    auto recipe = Recipe::read(stage.recipe, stage.to_train());
    registry.try_out(plugins_of(recipe));
    declare_components(recipe, registry);
    check_recipe(recipe, registry);
    auto tensors = tensors_of(recipe, registry, cascade.passes);
    stages.push_back({std::move(recipe), std::move(tensors)});
  }
  std::vector<StageTensors> tensors;
  for (const auto& stage : stages) tensors.push_back(stage.tensors);
  require_agreement(cascade, tensors);
  return stages;
}

}  // namespace ditto
