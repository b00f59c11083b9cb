#include "core/config/optimizer_group.h"

#include <algorithm>

#include <ditto/error.h>

#include "core/config/include.h"
#include "core/config/name_patterns.h"
#include "core/config/option_effects.h"

namespace ditto {

bool OptimizerGroup::matches(const std::string& name) const {
  return std::any_of(match.begin(), match.end(),
                     [&](const std::string& pattern) { return ditto::matches(pattern, name); });
}

void OptimizerGroup::read(OptionReader& option) {
  option("match", match, "patterns of parameters' names, *.bias; the first group that matches one takes it");
  option("lr_scale", lr_scale, "the learning rate as a share of lr_schedule.lr").at_least(0);
}

OptimizerGroup read_group(const formats::Node& node, const std::string& section, const Component& optimizer,
                          const std::string& file, std::vector<OptionInfo>& declared) {
  const auto where = place(node, file);
  const auto* table = node.as<formats::Table>();
  if (!table)
    throw Error(ErrorKind::config, where, section + " is " + node.type_name(),
                "expected a table for each group: [[optimizer.group]], with match = \"*.bias\"");
  OptimizerGroup group{section, {}, 1, {optimizer.plugin, where, options_of(*table, section, where)}};
  auto& given = group.component.options.given;
  OptionMap own{section, where, {}};
  for (const auto& key : own_keys(section))
    if (auto one = given.extract(key)) own.given.insert(std::move(one));
  if (const auto it = own.given.find("match"); it != own.given.end())
    if (const auto* one = std::get_if<std::string>(&it->second.value))
      it->second.value = std::vector<std::string>{*one};
  OptionReader option(own, effect_of_section(section));
  group.read(option);
  if (group.match.empty())
    throw Error(ErrorKind::config, where, section + " names no parameters",
                "add match = \"*.bias\", or a list of such");
  declared = option.declared();
  if (table->find("plugin")) {
    auto named = component_in(*table, section, where);
    group.component.plugin = std::move(named.plugin);
    group.component.where = std::move(named.where);
  } else {
    given.insert(optimizer.options.given.begin(), optimizer.options.given.end());
  }
  return group;
}

}  // namespace ditto
