#include "core/evaluate/held_out_place.h"

#include <filesystem>
#include <optional>
#include <vector>

#include <ditto/data.h>
#include <ditto/text.h>

#include "core/config/idle_options.h"
#include "core/config/option_effects.h"
#include "core/dataset/inspect.h"
#include "core/formats/names.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOption = "--data";
constexpr const char* kSet = "path";  // of a prepared set, as sources call it

// From where the user stands; an address stays as it is.
std::string whole(const std::string& place) {
  return place.find("://") == std::string::npos ? fs::absolute(place).lexically_normal().string() : place;
}

std::vector<std::string> shards_at(const std::string& place) {
  if (!fs::is_directory(place)) return {place};
  const auto all = shards_named({place});
  std::vector<std::string> held_out;
  for (const auto& shard : all)
    if (formats::part_of_set(fs::path(shard).filename().string()) == formats::SetPart::held_out)
      held_out.push_back(shard);
  return held_out.empty() ? all : held_out;
}

std::optional<OptionInfo> option_of(const Recipe& recipe, Registry& registry) {
  OptionReader reader(OptionMap{"data", recipe.name, {}}, effect_of_section("data"));
  registry.factory<Source>(recipe.data.plugin, recipe.data.where).declare(reader);
  for (const auto& info : reader.declared())
    if (info.is_place && info.name.starts_with("validation_")) return info;
  return {};
}

}  // namespace

void hold_out(Recipe& recipe, Registry& registry, const std::string& place) {
  const auto where = std::string(kOption) + " " + shown(place);
  if (!recipe.data_parts.empty())
    throw Error(ErrorKind::config, where, "is one place, and the data of this run are a blend",
                "give its parts theirs: --set data.part.0.NAME=PLACE");
  auto& given = recipe.data.options.given;
  // A prepared set in the place of another says itself what is held out, and what of a sample is its class.
  const auto set = given.find(kSet);
  const auto* named = set == given.end() ? nullptr : std::get_if<std::string>(&set->second.value);
  if (named && !named->empty() && fs::is_directory(fs::path(place) / ".nv-meta")) {
    given[kSet] = {whole(place), where};
    return;
  }
  const auto option = option_of(recipe, registry);
  if (!option)
    throw Error(ErrorKind::config, where,
                "source \"" + recipe.data.plugin + "\" has no option that says where held-out samples lie",
                "give its own options by --set data.NAME=VALUE");
  OptionValue value = whole(place);
  if (std::holds_alternative<std::vector<std::string>>(option->fallback))
    value = shards_at(whole(place));
  else if (fs::is_directory(place))
    throw Error(ErrorKind::config, where,
                "is a folder, and data." + option->name + " of source \"" + recipe.data.plugin + "\" is a file",
                "name the file");
  given[option->name] = {value, where};
  // What the recipe says of the place before goes with it.
  read_without_idle(
      recipe.data.options, [&](const IdleOption& idle) { return !is_set(given.at(idle.option()).where); },
      [&] {
        OptionReader reader(recipe.data.options, effect_of_section("data"));
        registry.factory<Source>(recipe.data.plugin, recipe.data.where).declare(reader);
      });
}

}  // namespace ditto
