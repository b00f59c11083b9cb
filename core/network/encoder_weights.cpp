#include "core/network/encoder_weights.h"

#include <filesystem>

#include <ditto/error.h>

#include "core/exchange/foreign.h"
#include "core/network/foreign_model.h"

namespace ditto {

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

}  // namespace

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

}  // namespace ditto
