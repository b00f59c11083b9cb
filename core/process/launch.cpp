#include "core/process/launch.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/cache.h>
#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/guidance.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/sampler.h>

#include "core/components/components.h"
#include "core/config/numerics.h"
#include "core/console/streams.h"
#include "core/measure/processors.h"
#include "core/plugin/kinds.h"
#include "core/process/device.h"
#include "core/process/processor.h"
#include "sdk/src/idle_option.h"

namespace ditto {

std::chrono::milliseconds timeout(const Recipe& recipe) {
  return std::chrono::milliseconds(static_cast<int64_t>(recipe.parallel.timeout_s * 1000));
}

WatchOptions watch_options(const Recipe& recipe) {
  return {timeout(recipe), std::chrono::milliseconds(static_cast<int64_t>(recipe.parallel.hang_s * 1000))};
}

namespace {

bool holds(const formats::Table& table, const std::string& text);

bool holds(const formats::Node& node, const std::string& text) {
  if (const auto* inner = node.as<formats::Table>()) return holds(*inner, text);
  if (const auto* list = node.as<formats::Array>())
    return std::any_of(list->begin(), list->end(), [&](const auto& one) { return holds(one, text); });
  const auto* value = node.as<std::string>();
  return value && *value == text;
}

bool holds(const formats::Table& table, const std::string& text) {
  return std::any_of(table.entries().begin(), table.entries().end(),
                     [&](const formats::Entry& entry) { return holds(entry.value, text); });
}

}  // namespace

bool asks_for_bf16(const Recipe& recipe) { return holds(recipe.resolved(), "bf16"); }

void prepare_process(const Recipe& recipe, const RankInfo& rank) {
  const bool multiplies = recipe.run.device == "cpu" || recipe.parallel.offload != "none";
  const auto done = multiplies && asks_for_bf16(recipe) ? avoid_refused_instructions() : std::string();
  if (!done.empty() && rank.rank == 0) report::tell(done);
  if (recipe.run.threads > 0) torch::set_num_threads(static_cast<int>(recipe.run.threads));
  if (recipe.run.threads > 0) return;
  const int said = report::said_threads();  // MKL lets LibTorch take no more of them than there are processors
  torch::set_num_threads(said > 0 ? said : std::max(1, report::processors_of_rank(rank.local_world_size)));
}

namespace {

// What other tools choose a component by, where its plugin has no option of that name.
void refuse_name(const OptionReader& reader, const OptionMap& given) {
  const auto& declared = reader.declared();
  for (const char* key : {"name", "type"}) {
    const auto it = given.given.find(key);
    if (it != given.given.end() &&
        std::none_of(declared.begin(), declared.end(), [&](const OptionInfo& info) { return info.name == key; }))
      throw Error(ErrorKind::config, it->second.where, fmt::format("[{}] has no option \"{}\"", given.section, key),
                  fmt::format("its plugin is chosen by {}.plugin = \"…\"", given.section));
  }
}

bool has_weights(const Recipe& recipe, const std::string& section) {
  const auto is_it = [&](const NetworkSection& one) { return one.section() == section && !one.weights.empty(); };
  return std::any_of(recipe.encoders.begin(), recipe.encoders.end(), is_it) ||
         std::any_of(recipe.networks.begin(), recipe.networks.end(), is_it);
}

template <class Interface>
void declare(Recipe& recipe, Registry& registry, const std::string& section, Component& component) {
  if (!component) return;
  const auto& factory = registry.factory<Interface>(component.plugin, component.where);
  see_from_here<Interface>(recipe, registry, component, component.options);
  const auto read = [&] {
    OptionReader reader(component.options, effect_of_options<Interface>());
    guarded(plugin_name(Interface::kKind, component.plugin) + ", reading its options",
            [&] { factory.declare(reader); });
    refuse_name(reader, component.options);
    reader.finish();
    recipe.resolve(section, component.plugin, reader.declared());
  };
  try {
    recipe.read_options(component.options, read);
  } catch (const RejectedOption&) {  // what it does not go with may be a size that weights say: seen again over them
    if (!has_weights(recipe, section)) throw;
  }
}

}  // namespace

std::vector<PluginKey> plugins_of(Recipe& recipe) {
  std::vector<PluginKey> plugins;
  for (const auto& [section, component] : recipe.components())
    if (*component) plugins.emplace_back(kind_of(section), component->plugin);
  for (const auto& id : strategy_ids(recipe)) plugins.emplace_back(ParallelStrategy::kKind, id);
  for (const auto& id : kernel_sets(recipe)) plugins.emplace_back(KernelSet::kKind, id);
  if (!recipe.run.transport.empty()) plugins.emplace_back(Transport::kKind, recipe.run.transport);
  return plugins;
}

void declare_components(Recipe& recipe, Registry& registry) {
  for (const auto& [section, component] : recipe.components())
    for_each_kind([&](auto tag) {
      using Interface = typename decltype(tag)::type;
      if (kind_of(section) == Interface::kKind) declare<Interface>(recipe, registry, section, *component);
    });
  refuse_unread_options(recipe, registry);
  for (const auto& id : strategy_ids(recipe)) {
    const auto& factory = registry.factory<ParallelStrategy>(id, place_of_strategy(recipe, id));
    OptionReader reader(strategy_options(recipe, factory));
    factory.declare(reader);
    recipe.resolve("parallel", {}, reader.declared());
  }
}

void check_recipe(const Recipe& recipe, Registry& registry) {
  require_training_sections(recipe);
  auto copy = recipe;
  Components components(copy, registry);
  components.op_table();
  if (!recipe.run.transport.empty()) make_transport(recipe, registry);
  if (!recipe.sampler) return;
  require(recipe, recipe.scheduler, "scheduler");
  const auto scheduler = components.make<Scheduler>("scheduler", recipe.scheduler, {});
  const auto sampler = components.make<Sampler>("sampler", recipe.sampler, {});
  refuse_pair(recipe, *sampler, *scheduler);
}

}  // namespace ditto
