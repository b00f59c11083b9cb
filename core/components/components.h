// Parts of a recipe made by their plugins: the one place where it is done, and where the recipe learns their defaults.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ditto/kernels.h>
#include <ditto/sampler.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

namespace ditto {

using Log = std::function<void(const std::string&)>;

// Throws Error(config): a section that is needed and not there; a sampler that makes no sense with the scheduler.
void require(const Recipe& recipe, const Component& component, const std::string& section);
// The same for all sections that a training needs, at once; those that most recipes have are named with them.
void require_training_sections(const Recipe& recipe);
void refuse_pair(const Recipe& recipe, const Sampler& sampler, const Scheduler& scheduler);

// Recipe::see_from_here of a section's options.
template <class Interface>
void see_from_here(const Recipe& recipe, Registry& registry, const Component& component, OptionMap& given) {
  if (std::none_of(given.given.begin(), given.given.end(), [](const auto& one) { return is_set(one.second.where); }))
    return;
  const auto& factory = registry.factory<Interface>(component.plugin, component.where);
  OptionReader reader({given.section, component.where, {}}, effect_of_options<Interface>());
  guarded(plugin_name(Interface::kKind, component.plugin) + ", its options", [&] { factory.declare(reader); });
  recipe.see_from_here(given, reader.declared());
}

class Components {
 public:
  // All of these outlive it. `log` is told what is about to be made: a plugin that never comes back from its
  // constructor is named by the last line.
  Components(Recipe& recipe, Registry& registry, Log log = {});

  // The component of this section, which the recipe has; without a name: of another run's recipe. Throws Error(config)
  // or Error(plugin).
  template <class Interface>
  std::shared_ptr<Interface> make(const std::string& section, const Component& component,
                                  const typename Interface::Needs& needs) {
    auto given = component.options;
    see_from_here<Interface>(recipe, registry, component, given);
    const auto made = [&] {
      return make_with<Interface>(component.plugin, component.where, given, needs, [&](const auto& declared) {
        if (!section.empty()) recipe.resolve(section, component.plugin, declared);
      });
    };
    if (!section.empty()) return recipe.read_options(given, made);
    return read_without_idle(
        given, [](const IdleOption&) { return true; }, made);
  }
  // The same, where no section of that name is resolved.
  template <class Interface, class Done>
  std::shared_ptr<Interface> make_with(const std::string& id, const std::string& where, const OptionMap& options,
                                       const typename Interface::Needs& needs, const Done& done) {
    const auto& factory = registry.factory<Interface>(id, where);
    OptionReader reader(options, effect_of_options<Interface>());
    about_to_make(Interface::kKind, id);
    auto made = guarded(std::string(Interface::kKind) + " '" + id + "', being made",
                        [&] { return factory.make(reader, needs); });
    done(reader.declared());
    return made;
  }
  // Every kernel plugin's rows, with scores as run.bf16_in_fp32 wants them, and the ops that they add.
  std::vector<KernelRow> kernel_rows();
  // The same, with the recipe's pins. Throws Error(config) for a pin that names no op or no variant and for an op of
  // run.bf16_in_fp32 that no row computes so, and Error(plugin) for an op that is added twice.
  std::shared_ptr<OpTable> op_table();
  // The same ops by their references alone, for what is computed on shapes; empty before they were asked for.
  const std::vector<Op>& added_ops() const { return added_ops_; }
  // Of each kernel set that keeps what it chooses: what it has chosen by now.
  std::map<std::string, KernelChoices> kept() const;

  Recipe& recipe;
  Registry& registry;
  std::map<std::string, KernelChoices> kept_before;  // what kernel sets are given of that

 private:
  void about_to_make(std::string_view kind, const std::string& id) const;
  Log log_;
  std::vector<Op> added_ops_;
  std::vector<std::pair<std::string, std::shared_ptr<KernelSet>>> kernel_sets_;
};

}  // namespace ditto
