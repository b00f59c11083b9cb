// ditto config check|show RECIPE
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include <ditto/text.h>

#include "apps/ditto/cascade.h"
#include "apps/ditto/commands.h"
#include "core/assembly/run_notes.h"
#include "core/config/late_options.h"
#include "core/plan/rehearsal.h"
#include "core/plugin/trial.h"
#include "core/process/launch.h"

namespace ditto {

namespace {

struct ConfigArguments {
  std::string recipe;
  std::vector<std::string> sets;
  int ranks = 0;
};

// What the degrees that are given multiply to.
int fewest_ranks(const Recipe& recipe) {
  int64_t ranks = 1;
  for (const auto& [axis, degree] : degrees(recipe)) ranks *= std::max<int64_t>(1, degree);
  return static_cast<int>(std::clamp<int64_t>(ranks, 1, 1'000'000));
}

int check(const ConfigArguments& arguments, const CommandLine& line, bool print);

// That its stages agree, and each as a recipe.
int check_cascade(const ConfigArguments& arguments, const CommandLine& line) {
  const auto cascade = read_cascade(arguments.recipe, arguments.sets);
  if (const int code = check_stages(cascade, line)) return code;
  return for_each_stage(cascade, {}, [&](const CascadeStage& stage) {
    return check({stage.recipe, stage.to_train(), arguments.ranks}, line, false);
  });
}

// Everything that a run would be made of: data is opened and its samples' sizes looked at, no weight is filled and no
// step made.
int check(const ConfigArguments& arguments, const CommandLine& line, bool print) {
  if (is_cascade(arguments.recipe)) {
    if (print) refuse_cascade(arguments.recipe, "ditto config show");
    return check_cascade(arguments, line);
  }
  Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
  Registry registry(plugin_folders(line.plugin_path), try_new_plugins);
  registry.try_out(plugins_of(recipe));
  declare_components(recipe, registry);
  if (print) {
    std::cout << formats::render_toml(recipe.resolved());
  } else {
    check_recipe(recipe, registry);
    const int ranks = arguments.ranks > 0 ? arguments.ranks : fewest_ranks(recipe);
    if (const int code = rehearse(recipe, registry, ranks)) return code;
    for (const auto& note : notes_on_options(recipe)) std::cout << shown(note) << "\n";
    std::cout << shown(arguments.recipe) << ": fine on " << ranks << (ranks == 1 ? " rank\n" : " ranks\n");
  }
  return 0;
}

void add(CLI::App& parent, CommandLine& line, const std::string& name, const std::string& help, bool print) {
  auto* command = parent.add_subcommand(name, help);
  auto arguments = std::make_shared<ConfigArguments>();
  command
      ->add_option("recipe", arguments->recipe,
                   print ? "the recipe, a TOML file, or the folder of a run"
                         : "the recipe or the cascade, a TOML file, or the folder of a run or a cascade")
      ->required();
  command
      ->add_option("--set", arguments->sets,
                   print ? "KEY=VALUE: overrides an option"
                         : "KEY=VALUE: overrides an option; of a cascade's stage, STAGE.KEY=VALUE")
      ->allow_extra_args(false);
  if (!print)
    command
        ->add_option("--ranks", arguments->ranks, "for as many ranks; default: what the recipe's degrees multiply to")
        ->check(CLI::Range(1, 1'000'000));
  add_plugin_path(*command, line);
  command->footer("Example: ditto config " + name + " configs/digits.toml --set run.steps=100");
  command->callback([arguments, &line, print] { line.exit_code = check(*arguments, line, print); });
}

}  // namespace

void add_config_commands(CLI::App& app, CommandLine& line) {
  auto* config = app.add_subcommand("config", "Check a recipe, or show it with every default written out");
  config->require_subcommand(1);
  add(*config, line, "check", "Say whether a recipe can be run, and what is wrong with it", false);
  add(*config, line, "show", "Print the recipe with every option that it leaves to its default", true);
}

}  // namespace ditto
