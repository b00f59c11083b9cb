#include "core/network/strategies.h"

#include <algorithm>

#include <ditto/error.h>

#include "core/config/numerics.h"

namespace ditto {

Degrees degrees(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  Degrees degrees{{Axis::pipeline, p.pipeline},
                  {Axis::shard, p.shard},
                  {Axis::context, p.context},
                  {Axis::expert, p.expert},
                  {Axis::tensor, p.tensor}};
  if (p.replicate > 0) degrees[Axis::replicate] = p.replicate;
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
  add(p.serves("pipeline", p.pipeline), p.pipeline_plugin);
  add(p.serves("tensor", p.tensor), p.tensor_plugin);
  add(p.serves("expert", p.expert), p.expert_plugin);
  add(p.serves("context", p.context), p.context_plugin);
  add(p.serves("shard", p.shard), p.shard_plugin);
  // A degree that is left open is that of the ranks: a recipe is the same for one of them and for many.
  add(p.replicate == 0 || p.serves("replicate", p.replicate), p.replicate_plugin);
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

// In the order in which strategies take part.
std::vector<std::pair<Axis, std::string>> served(const ParallelOptions& p) {
  return {{Axis::pipeline, p.pipeline_plugin}, {Axis::tensor, p.tensor_plugin}, {Axis::expert, p.expert_plugin},
          {Axis::context, p.context_plugin},   {Axis::shard, p.shard_plugin},   {Axis::replicate, p.replicate_plugin}};
}

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
  for (const auto& [axis, id] : served(recipe.parallel))
    if (recipe.parallel.serves(name(axis), degrees.at(axis))) require_served(recipe, axis, id, degrees.at(axis));
}

std::vector<std::shared_ptr<ParallelStrategy>> make_strategies(Components& components,
                                                               const ParallelStrategy::Needs& needs,
                                                               const AxisSet& axes, bool trains) {
  const auto& p = components.recipe.parallel;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies;
  const auto add = [&](const std::string& id, const std::string& key, std::optional<Axis> axis) {
    strategies.push_back(make_strategy(components, needs, id, key, axis));
  };
  for (const auto& [axis, id] : served(p)) {
    if (!axes.count(axis) || !p.serves(name(axis), needs.mesh->size(axis))) continue;
    require_served(components.recipe, axis, id, needs.mesh->size(axis));
    add(id, key_of(axis), axis);
  }
  if (trains)
    for (const auto& id : p.without_axis()) add(id, "parallel." + id, std::nullopt);
  return strategies;
}

}  // namespace ditto
