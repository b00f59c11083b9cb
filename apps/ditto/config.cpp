// ditto config check|show RECIPE
#include <CLI/CLI.hpp>
#include <iostream>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/train/launch.h"
#include "core/train/record.h"

namespace ditto {

namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> sets;
};

// Everything that a run would be made of, without data being read or a step being made.
void check(const Arguments& arguments, const CommandLine& line, bool print) {
  Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
  Registry registry(plugin_folders(line.plugin_path), try_new_plugins);
  registry.try_out(plugins_of(recipe));
  declare_components(recipe, registry);
  if (print) {
    std::cout << formats::render_toml(recipe.resolved());
  } else {
    check_recipe(recipe, registry);
    std::cout << shown(arguments.recipe) << ": fine\n";
  }
}

void add(CLI::App& parent, CommandLine& line, const std::string& name, const std::string& help, bool print) {
  auto* command = parent.add_subcommand(name, help);
  auto arguments = std::make_shared<Arguments>();
  command->add_option("recipe", arguments->recipe, "the recipe, a TOML file")->required();
  command->add_option("--set", arguments->sets, "KEY=VALUE: overrides an option")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->footer("Example: ditto config " + name + " configs/digits.toml --set run.steps=100");
  command->callback([arguments, &line, print] { check(*arguments, line, print); });
}

}  // namespace

void add_config_commands(CLI::App& app, CommandLine& line) {
  auto* config = app.add_subcommand("config", "Check a recipe, or show it with every default written out");
  config->require_subcommand(1);
  add(*config, line, "check", "Say whether a recipe can be run, and what is wrong with it", false);
  add(*config, line, "show", "Print the recipe with every option that it leaves to its default", true);
}

}  // namespace ditto
