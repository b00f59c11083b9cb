#include "core/components/strategies.h"

#include <algorithm>
#include <array>

#include <ditto/error.h>

#include "core/config/numerics.h"

namespace ditto {

namespace {

// What [parallel] says of an axis.
struct AxisKeys {
  Axis axis;
  int64_t ParallelOptions::*degree;
  std::string ParallelOptions::*plugin;
};
// In the order in which strategies take part.
constexpr std::array<AxisKeys, kAxes.size()> kAxisKeys{
    {{Axis::pipeline, &ParallelOptions::pipeline, &ParallelOptions::pipeline_plugin},
     {Axis::tensor, &ParallelOptions::tensor, &ParallelOptions::tensor_plugin},
     {Axis::expert, &ParallelOptions::expert, &ParallelOptions::expert_plugin},
     {Axis::context, &ParallelOptions::context, &ParallelOptions::context_plugin},
     {Axis::shard, &ParallelOptions::shard, &ParallelOptions::shard_plugin},
     {Axis::replicate, &ParallelOptions::replicate, &ParallelOptions::replicate_plugin}}};
constexpr int64_t kOpen = 0;  // a degree that is left to the number of ranks: replicate's may be

}  // namespace

Degrees degrees(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  Degrees degrees;
  for (const auto& of : kAxisKeys)
    if (const int64_t degree = p.*of.degree; degree != kOpen) degrees[of.axis] = degree;
  return degrees;
}

std::string place_of_strategy(const Recipe& recipe, const std::string& id) {
  for (const auto& [key, option] : recipe.parallel.given) {
    const auto* one = std::get_if<std::string>(&option.value);
    const auto* list = std::get_if<std::vector<std::string>>(&option.value);
    if ((one && *one == id) || (list && std::find(list->begin(), list->end(), id) != list->end())) return option.where;
  }
  return recipe.name;
}

OptionMap strategy_options(const Recipe& recipe, const Factory<ParallelStrategy>& factory) {
  OptionReader declares({"parallel", recipe.name, {}});
  factory.declare(declares);
  OptionMap map{"parallel", recipe.name, {}};
  for (const auto& info : declares.declared())
    if (const auto it = recipe.parallel.given.find(info.name); it != recipe.parallel.given.end()) map.given.insert(*it);
  return map;
}

std::vector<std::string> strategy_ids(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  std::vector<std::string> ids;
  const auto add = [&](bool used, const std::string& id) {
    if (used && !id.empty()) ids.push_back(id);
  };
  // An open degree is that of the ranks: a recipe is the same for one of them and for many.
  for (const auto& of : kAxisKeys) add(p.*of.degree == kOpen || p.serves(name(of.axis), p.*of.degree), p.*of.plugin);
  for (const auto& id : p.without_axis()) add(true, id);
  return ids;
}

void refuse_unread_options(const Recipe& recipe, Registry& registry) {
  OptionReader reader({"parallel", recipe.name, {}});
  ParallelOptions().read(reader);
  std::vector<std::string> known;
  const auto note = [&](const OptionReader& of) {
    for (const auto& info : of.declared()) known.push_back(info.name);
  };
  note(reader);
  std::string list;
  for (const auto& id : strategy_ids(recipe)) {
    OptionReader declares({"parallel", recipe.name, {}});
    registry.factory<ParallelStrategy>(id, place_of_strategy(recipe, id)).declare(declares);
    note(declares);
    list += (list.empty() ? "" : ", ") + id;
  }
  for (const auto& [key, option] : recipe.parallel.given) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto near = nearest(key, known);
    throw Error(ErrorKind::config, option.where, "parallel." + key + " is read by nobody",
                (near.empty() ? "" : "did you mean \"" + near + "\"? ") +
                    ("this recipe's strategies: " + (list.empty() ? std::string("none") : list)));
  }
}

namespace {

std::string key_of(Axis axis) { return std::string("parallel.") + name(axis); }

void require_served(const Recipe& recipe, Axis axis, const std::string& id, int64_t degree) {
  if (id.empty())
    throw Error(ErrorKind::config, recipe.name,
                key_of(axis) + " = " + std::to_string(degree) + ", but no plugin serves this axis",
                "set " + key_of(axis) + "_plugin; see `ditto plugins list`");
}

std::shared_ptr<ParallelStrategy> make_strategy(Components& components, const ParallelStrategy::Needs& needs,
                                                const std::string& id, const std::string& key,
                                                std::optional<Axis> axis) {
  const auto& recipe = components.recipe;
  const auto where = place_of_strategy(recipe, id);
  const auto options = strategy_options(recipe, components.registry.factory<ParallelStrategy>(id, where));
  auto made = components.make_with<ParallelStrategy>(
      id, where, options, needs, [&](const auto& declared) { components.recipe.resolve("parallel", {}, declared); });
  if (made->axis() && !axis)
    throw Error(ErrorKind::config, where,
                "parallel.strategies names \"" + id + "\", which serves the axis " + name(*made->axis()),
                "set " + key_of(*made->axis()) + "_plugin = \"" + id + "\" instead");
  if (made->axis() != axis)
    throw Error(ErrorKind::config, where, key + "_plugin = \"" + id + "\" serves another axis",
                "see `ditto plugins list`");
  if (needs.token_leaf > 0 && !made->exact())
    refuse_numerics("\"one\" does not go with the strategy \"" + id + "\", which does not say that it is exact",
                    "choose another one for " + key + ", or set run.numerics = \"fast\"");
  return made;
}

}  // namespace

void refuse_unserved(const Recipe& recipe, const Degrees& degrees) {
  const auto& p = recipe.parallel;
  for (const auto& of : kAxisKeys)
    if (const int64_t degree = degrees.at(of.axis); p.serves(name(of.axis), degree))
      require_served(recipe, of.axis, p.*of.plugin, degree);
}

std::vector<std::shared_ptr<ParallelStrategy>> make_strategies(Components& components,
                                                               const ParallelStrategy::Needs& needs,
                                                               const AxisSet& axes, bool trains) {
  const auto& p = components.recipe.parallel;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;
  const auto add = [&](const std::string& id, const std::string& key, std::optional<Axis> axis) {
    strategies.push_back(make_strategy(components, needs, id, key, axis));
  };
  for (const auto& of : kAxisKeys) {
    const int degree = needs.mesh->size(of.axis);
    if (!axes.count(of.axis) || !p.serves(name(of.axis), degree)) continue;
    require_served(components.recipe, of.axis, p.*of.plugin, degree);
    add(p.*of.plugin, key_of(of.axis), of.axis);
  }
  if (trains)
    for (const auto& id : p.without_axis()) add(id, "parallel." + id, std::nullopt);
  return strategies;
}

}  // namespace ditto
