#include "core/components/encoded_source.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/config/differences.h"

namespace ditto {

namespace fs = std::filesystem;

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

// Relative places are the recipe's, and another recipe beside other data may say the same.
std::string absolute(const Recipe& recipe, const std::string& key) {
  auto node = *recipe.resolved().find_path(key);
  const auto place = [&](formats::Node& of) {
    auto* text = of.as<std::string>();
    if (text && !text->empty() && text->find("://") == std::string::npos)
      *text = (fs::path(recipe.run.folder) / *text).lexically_normal().string();
  };
  place(node);
  if (auto* list = node.as<formats::Array>()) std::for_each(list->begin(), list->end(), place);
  return formats::render_toml_value(node);
}

// Data that cannot be opened is not there, and need not be.
void require_same_data(const EncodedSet& encoded, const std::function<std::shared_ptr<Source>()>& open_data,
                       const std::string& where) {
  std::string here;
  try {
    here = open_data()->fingerprint();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::config) throw;
    return;
  }
  if (here != encoded.fingerprint())
    throw Error(ErrorKind::config, where,
                shown("is of other samples: their fingerprint is " + encoded.fingerprint() + " there and " + here +
                          " of the data that [data] names",
                      kSentenceShown),
                "encode this recipe into another folder, or name the data as it was");
}

}  // namespace

std::map<std::string, std::string> resolved_data(const Recipe& recipe) {
  std::map<std::string, std::string> options;
  for (const auto& [key, value] : flat(recipe.resolved()))
    if (key.starts_with("data.") && recipe.effects().of(key) != Effect::nothing)
      options[key] = recipe.effects().is_place(key) ? absolute(recipe, key) : value;
  return options;
}

std::shared_ptr<Source> open_encoded(Components& components, SplitOf split,
                                     const std::function<std::shared_ptr<Source>()>& open_data) {
  const auto& recipe = components.recipe;
  const auto& folder = recipe.loader.encoded;
  auto encoded = std::make_shared<EncodedSet>(folder, split);
  declare(components, {"data", recipe.data, 0, 1, recipe.data_parts});
  const auto apart = difference(json_of(encoded->encoding().data), json_of(resolved_data(recipe)));
  const auto where = "loader.encoded = \"" + folder + "\"";
  if (!apart.empty())
    throw Error(ErrorKind::config, where, "is of other data: " + apart,
                "encode this recipe into another folder, or set these options as they were");
  require_same_data(*encoded, open_data, where);
  return encoded;
}

}  // namespace ditto
