// ditto train RECIPE
#include <CLI/CLI.hpp>
#include <algorithm>

#include <torch/torch.h>

#include "apps/ditto/commands.h"
#include "core/dist/gloo_mesh.h"
#include "core/dist/local_ranks.h"
#include "core/dist/watch.h"
#include "core/plugin/guard.h"
#include "core/train/device.h"
#include "core/train/launch.h"
#include "core/train/rehearsal.h"
#include "core/train/trainer.h"

namespace ditto {

namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> sets;
  TrainOptions options;
  int local_ranks = 0;
  std::string trace;
};

int train(const Arguments& arguments, const CommandLine& line) {
  Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
  Registry registry(plugin_folders(search_folders(recipe)));
  const auto rank = arguments.local_ranks > 0 ? RankInfo{} : rank_info();
  const auto transports = open_device(recipe, registry, rank);
  declare_components(recipe, registry);  // refused before any rank starts, and before a folder is made
  check_recipe(recipe, registry);
  if (arguments.local_ranks > 0) {
    if (const int code = rehearse_layout(recipe, registry, arguments.local_ranks)) return code;
    return run_local_ranks({arguments.local_ranks, without_local_ranks(line.arguments)});
  }
  prepare_process(recipe, rank);
  const GlooMesh mesh(rank, degrees(recipe), timeout(recipe), transports);
  RankWatch watch(rank, watch_options(recipe));
  auto options = arguments.options;
  options.watch = &watch;
  options.trace_comm = arguments.trace == "comm";
  std::unique_ptr<Trainer> trainer;  // its end may wait for lost peers: a failure is told before
  try {
    return guarded("", [&] {
      trainer = std::make_unique<Trainer>(std::move(recipe), registry, mesh, mesh.own_world("checkpoint"), options);
      const int code = trainer->run();
      watch.finish();
      return code;
    });
  } catch (const Error& error) {
    return watch.fail(error);
  }
}

}  // namespace

void add_train_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("train", "Train what a recipe describes, or go on training it");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("recipe", arguments->recipe, "the recipe, a TOML file")->required();
  command->add_option("--set", arguments->sets, "KEY=VALUE: overrides an option, as in --set run.steps=100")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->options.resume,
                   "auto: from the run's newest whole checkpoint; never; or a checkpoint")
      ->capture_default_str();
  command
      ->add_option("--allow-change", arguments->options.allow_change,
                   "KEY (or section) that may differ from the run that is resumed")
      ->allow_extra_args(false);
  command->add_option("--local-ranks", arguments->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--trace", arguments->trace,
                      "comm: every step's calls on other ranks and memory in metrics.jsonl, and a table at the end")
      ->check(CLI::IsMember({"comm"}));
  command->add_flag("--dry-run", arguments->options.dry_run, "put everything together, say what it is, and stop");
  command->footer("Example: ditto train configs/digits.toml --set run.steps=100 --local-ranks 2");
  command->callback([arguments, &line] { line.exit_code = train(*arguments, line); });
}

}  // namespace ditto
