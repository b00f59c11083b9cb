#include "core/components/components.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>

#include "core/components/bf16_rows.h"
#include "core/config/numerics.h"

namespace ditto {

void require(const Recipe& recipe, const Component& component, const std::string& section) {
  if (!component)
    throw Error(ErrorKind::config, recipe.name, "has no section [" + section + "]",
                "add it, with plugin = \"…\"; see `ditto plugins list`");
}

void require_training_sections(const Recipe& recipe) {
  const std::pair<const char*, bool> needed[] = {{"data", bool(recipe.data)},
                                                 {"model", bool(recipe.model)},
                                                 {"objective", bool(recipe.objective)},
                                                 {"optimizer", bool(recipe.optimizer)}};
  const std::pair<const char*, bool> usual[] = {{"scheduler", bool(recipe.scheduler)},
                                                {"encoder.image", !recipe.encoders.empty()}};
  const auto missing = [](const auto& sections) {
    std::vector<std::string> names;
    for (const auto& [name, is_there] : sections)
      if (!is_there) names.push_back(fmt::format("[{}]", name));
    return names;
  };
  const auto all = missing(needed), others = missing(usual);
  if (all.empty()) return;
  throw Error(
      ErrorKind::config, recipe.name,
      fmt::format("has no section{} {}", all.size() > 1 ? "s" : "", fmt::join(all, ", ")),
      fmt::format("add {} with plugin = \"…\"{}; see `ditto plugins list`", all.size() > 1 ? "each," : "it,",
                  others.empty() ? std::string()
                                 : fmt::format(", and {}, which most recipes have", fmt::join(others, " and "))));
}

void refuse_pair(const Recipe& recipe, const Sampler& sampler, const Scheduler& scheduler) {
  const auto why = sampler.refuses(scheduler);
  if (!why.empty())
    throw Error(ErrorKind::config, recipe.sampler.where,
                "sampler \"" + recipe.sampler.plugin + "\" does not go with scheduler \"" + recipe.scheduler.plugin +
                    "\": " + why,
                "choose another sampler; see `ditto plugins list`");
}

Components::Components(Recipe& recipe_, Registry& registry_, Log log)
    : recipe(recipe_), registry(registry_), log_(std::move(log)) {}

std::vector<KernelRow> Components::kernel_rows() {
  std::vector<KernelRow> rows;
  added_ops_.clear();
  kernel_sets_.clear();
  for (const auto& id : kernel_sets(recipe)) {
    const auto given = recipe.kernel_options.find(id);
    const auto options =
        given == recipe.kernel_options.end() ? OptionMap{"kernels." + id, recipe.name, {}} : given->second;
    const auto before = kept_before.find(id);
    const KernelSet::Needs needs{before == kept_before.end() ? KernelChoices() : before->second};
    const auto set = make_with<KernelSet>(id, recipe.name, options, needs, [&](const auto& declared) {
      if (!declared.empty()) recipe.resolve("kernels." + id, "", declared);
    });
    kernel_sets_.emplace_back(id, set);
    for (auto& row : set->rows()) rows.push_back(std::move(row));
    for (auto& op : set->ops()) {
      op.added_by = id;
      added_ops_.push_back(std::move(op));
    }
  }
  choose_ways(rows, recipe);
  return rows;
}

std::shared_ptr<OpTable> Components::op_table() {
  auto rows = kernel_rows();
  require_ways(rows, recipe);
  return std::make_shared<OpTable>(std::move(rows), recipe.kernels, log_, added_ops_, is_one_number(recipe));
}

std::map<std::string, KernelChoices> Components::kept() const {
  std::map<std::string, KernelChoices> all;
  for (const auto& [id, set] : kernel_sets_)
    if (auto choices = set->kept()) all.emplace(id, std::move(*choices));
  return all;
}

void Components::about_to_make(std::string_view kind, const std::string& id) const {
  if (log_) log_("making " + plugin_name(kind, id));
}

}  // namespace ditto
