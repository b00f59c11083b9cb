#include "core/components/encoded_source.h"

#include <nlohmann/json.hpp>

#include <ditto/error.h>

#include "core/config/differences.h"

namespace ditto {

namespace {

void declare(Components& components, const DataPart& part) {
  if (!part.parts.empty()) {
    for (const auto& inner : part.parts) declare(components, inner);
    return;
  }
  auto& recipe = components.recipe;
  const auto& component = part.component;
  const auto& factory = components.registry.factory<Source>(component.plugin, component.where);
  auto given = component.options;
  see_from_here<Source>(recipe, components.registry, component, given);
  recipe.read_options(given, [&] {
    OptionReader reader(given, effect_of_options<Source>());
    guarded(plugin_name(Source::kKind, component.plugin) + ", its options", [&] { factory.declare(reader); });
    reader.finish();
    recipe.resolve(part.section, component.plugin, reader.declared());
  });
}

nlohmann::json json_of(const std::map<std::string, std::string>& options) {
  auto json = nlohmann::json::object();
  for (const auto& [key, value] : options) json[key] = value;
  return json;
}

}  // namespace

std::map<std::string, std::string> resolved_data(const Recipe& recipe) {
  std::map<std::string, std::string> options;
  for (const auto& [key, value] : flat(recipe.resolved()))
    if (key.starts_with("data.") && recipe.effects().of(key) != Effect::nothing) options[key] = value;
  return options;
}

std::shared_ptr<Source> open_encoded(Components& components, SplitOf split) {
  const auto& recipe = components.recipe;
  const auto& folder = recipe.loader.encoded;
  auto encoded = std::make_shared<EncodedSet>(folder, split);
  declare(components, {"data", recipe.data, 0, 1, recipe.data_parts});
  const auto apart = difference(json_of(encoded->encoding().data), json_of(resolved_data(recipe)));
  if (!apart.empty())
    throw Error(ErrorKind::config, "loader.encoded = \"" + folder + "\"", "is of other data: " + apart,
                "encode this recipe into another folder, or set these options as they were");
  return encoded;
}

}  // namespace ditto
