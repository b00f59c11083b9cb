#include "core/network/foreign_model.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include <ditto/math/sizes.h>

#include "core/checkpoint/index.h"
#include "core/console/streams.h"
#include "core/exchange/foreign.h"
#include "core/network/finite.h"

namespace ditto {

namespace {

constexpr const char *kFormat = "ditto.format", *kRecipe = "ditto.recipe", *kShapes = "ditto.shapes";
constexpr std::array<const char*, 3> kSections{"model", "scheduler", "sampler"};  // that an export notes
constexpr const char *kHere = "ditto checkpoint import", *kPlugin = "model.plugin=";

std::string note(const checkpoint::ForeignWeights& weights, const char* name) {
  const auto found = weights.notes.find(name);
  return found == weights.notes.end() ? "" : found->second;
}

bool is_ours(const checkpoint::ForeignWeights& weights) {
  return !note(weights, kRecipe).empty() && !note(weights, kShapes).empty();
}

std::string place_in(const checkpoint::ForeignWeights& weights, const char* name) {
  return weights.shapes.file + " (" + name + ")";
}

void refuse_other_format(const checkpoint::ForeignWeights& weights, const std::string& section) {
  const auto noted = note(weights, kFormat);
  if (noted.empty() || noted == weights.shapes.format) return;
  const bool is_import = section == "model";
  throw Error(ErrorKind::config,
              is_import ? "--format " + weights.shapes.format : section + ".format = \"" + weights.shapes.format + "\"",
              weights.shapes.file + " was exported in the format " + noted,
              is_import ? "use --format " + noted : "set it to \"" + noted + "\"");
}

// The sections that an export notes, and no other: a file does not say where a run reads and writes.
Recipe noted_recipe(const checkpoint::ForeignWeights& weights, const std::vector<std::string>& sets) {
  const auto place = place_in(weights, kRecipe);
  const auto noted = formats::parse_toml(note(weights, kRecipe), place);
  formats::Table sections;
  for (const char* section : kSections)
    if (const auto* node = noted.find(section)) sections.set(section, *node);
  return Recipe::saved(formats::render_toml(sections), place, sets);
}

bool same(const OptionValue& a, const OptionValue& b) {
  const auto* whole = std::get_if<int64_t>(&a);
  const auto* real = std::get_if<double>(&b);
  return a == b || (whole && real && static_cast<double>(*whole) == *real);
}

[[noreturn]] void refuse_other(const std::string& where, const std::string& key, const OptionValue& said,
                               const OptionValue& found, const std::string& whose) {
  throw Error(ErrorKind::config, where,
              key + " is " + to_text(said) + ", and of the weights in " + whose + " it is " + to_text(found),
              "leave it out, or choose other weights");
}

// [model] as the file was exported from; what a recipe says must be that.
void take_noted_model(Recipe& recipe, const checkpoint::ForeignWeights& weights, const std::string& section) {
  const auto noted = noted_recipe(weights, {}).model;
  if (!recipe.model) {
    recipe.model = noted;
    return;
  }
  const auto whose = weights.shapes.file + " (format " + weights.shapes.format + ")";
  if (recipe.model.plugin != noted.plugin)
    refuse_other(recipe.model.where, section + ".plugin", recipe.model.plugin, noted.plugin, whose);
  for (const auto& [key, found] : noted.options.given) take_option(recipe.model.options, key, found, section, whose);
}

// A file's own words are held to what a recipe may say.
SavedShapes noted_shapes(const checkpoint::ForeignWeights& weights) {
  const auto place = place_in(weights, kShapes);
  auto shapes = saved_shapes(note(weights, kShapes), place);
  const auto& [inputs, out_channels] = shapes.model;
  const auto is_side = [](int64_t side) { return (side >= -1 || side == kOwnSide) && side <= most::kSide; };
  const bool fits = is_side(out_channels) && std::all_of(inputs.begin(), inputs.end(), [&](const TensorSpec& input) {
                      return input.shape.size() <= 4 && std::all_of(input.shape.begin(), input.shape.end(), is_side) &&
                             std::abs(checkpoint::numbers(input.shape)) <= most::kNumbers && input.values >= 0 &&
                             input.values <= most::kClasses;
                    });
  if (!fits) throw Error(ErrorKind::checkpoint, place, "says sizes that no model has", "use another file");
  return shapes;
}

// What the plugin reads out of a file that others made.
SavedShapes read_model(Recipe& recipe, const ForeignShapes& file, Registry& registry, const std::string& section) {
  auto& model = recipe.model;
  if (!model)
    throw Error(ErrorKind::config, recipe.name, "nothing says which model these weights are of",
                section == "model" ? "give a recipe with a [model] section, or --set model.plugin=NAME"
                                   : "add plugin = \"…\" to [" + section + "]");
  const auto& factory = registry.factory<Model>(model.plugin, model.where);
  if (!factory.foreign_needs)
    throw Error(ErrorKind::config, model.where,
                "model \"" + model.plugin + "\" does not read its shapes out of another project's file",
                "import a file that Ditto exported, or give its class a foreign_needs (docs/add_a_model.md)");
  return {read_foreign(recipe, model.options, factory, file, "model '" + model.plugin + "'"), {}};
}

// Of the classes that the model's plugin reads, by which its folder in a pipeline's is found, and its place in a file
// of several models. The plugin is the recipe's or, where there is none, that of the command's words; none: none.
checkpoint::Classes classes_of(const std::optional<Recipe>& given, const std::vector<std::string>& sets,
                               Registry& registry) {
  std::vector<std::string> said;
  for (const auto& set : sets)
    if (set.starts_with(kPlugin)) said.push_back(set);
  const auto model = given ? given->model : Recipe::parse("", kHere, said).model;
  if (!model) return {};
  const auto& factory = registry.factory<Model>(model.plugin, model.where);
  return factory.foreign_classes ? factory.foreign_classes() : checkpoint::Classes();
}

}  // namespace

std::map<std::string, std::string> export_notes(const Recipe& recipe, const SavedShapes& shapes,
                                                const std::string& format) {
  formats::Table sections;
  for (const char* section : kSections)
    if (const auto* node = recipe.resolved().find(section)) sections.set(section, *node);
  return {{kFormat, format}, {kRecipe, formats::render_toml(sections)}, {kShapes, to_text(shapes)}};
}

ForeignModel open_foreign(const std::string& path, const std::string& format, std::optional<checkpoint::Which> which,
                          std::optional<Recipe> given, const std::vector<std::string>& sets, Registry& registry,
                          const std::string& section) {
  ForeignModel made;
  const auto weights = checkpoint::look_at_weights(path, format, which, classes_of(given, sets, registry));
  made.file = weights.shapes.file;
  made.config_text = weights.config_text;
  made.others = weights.others;
  made.reading = weights.reading;
  refuse_other_format(weights, section);
  const bool ours = is_ours(weights);
  made.recipe = given ? std::move(*given) : ours ? noted_recipe(weights, sets) : Recipe::parse("", kHere, sets);
  if (ours) {
    take_noted_model(made.recipe, weights, section);
    made.shapes = noted_shapes(weights);
  } else {
    made.shapes = read_model(made.recipe, weights.shapes, registry, section);
  }
  return made;
}

std::optional<checkpoint::Which> which_of(const NetworkSection& section) {
  if (section.which == "weights") return checkpoint::Which::weights;
  return std::nullopt;
}

void require_weights(const NetworkSection& section) {
  std::error_code ignored;
  if (std::filesystem::exists(section.weights, ignored)) return;
  throw Error(ErrorKind::checkpoint, section.component.where,
              section.section() + ".weights: " + section.weights + " is not there",
              "name them as they lie now: --set " + section.section() + ".weights=FILE");
}

void take_option(OptionMap& given, const std::string& name, const GivenOption& found, const std::string& section,
                 const std::string& whose) {
  const auto [said, is_new] = given.given.emplace(name, found);
  if (!is_new && !same(said->second.value, found.value))
    refuse_other(said->second.where, section + "." + name, said->second.value, found.value, whose);
}

std::string load_foreign_weights(const Units& of, const NetworkSection& section, const std::string& file,
                                 const std::string& reading, RunningUnits& into, const Mesh& mesh) {
  if (!reading.empty() && mesh.rank() == 0) report::tell("[" + section.section() + "] " + reading);
  checkpoint::import_weights(of, section.format, file, into.layout, which_of(section), section.section());
  require_finite(into.layout, file);
  into.parameters_changed();
  const auto mine = checkpoint::fingerprint_of_weights(file);
  int rank = 0;
  for (const auto& other : mesh.world().all_gather_text(mine)) {
    if (other != mine)
      throw Error(
          ErrorKind::checkpoint, file,
          "holds other weights for rank " + std::to_string(rank) + " than for rank " + std::to_string(mesh.rank()),
          "give all machines the same file");
    ++rank;
  }
  return mine + (which_of(section) ? checkpoint::kNotAveraged : "");
}

}  // namespace ditto
