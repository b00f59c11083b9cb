// ditto train RECIPE
#include <CLI/CLI.hpp>

#include "apps/ditto/commands.h"
#include "core/dist/local_ranks.h"
#include "core/dist/stop.h"
#include "core/train/launch.h"
#include "core/train/rank.h"
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
  const auto info = arguments.local_ranks > 0 ? RankInfo{} : rank_info();
  if (!arguments.options.dry_run) answer_stop_signals(info);
  Rank rank(info);
  std::unique_ptr<Trainer> trainer;  // its end may wait for lost peers: a failure is told before
  return rank.run([&] {
    Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
    rank.open(recipe, line.plugin_path);
    declare_components(recipe, rank.registry());  // refused before any rank starts, and before a folder is made
    check_recipe(recipe, rank.registry());
    if (arguments.local_ranks > 0) {
      if (const int code = rehearse_layout(recipe, rank.registry(), arguments.local_ranks)) return code;
      return run_local_ranks({arguments.local_ranks, without_local_ranks(line.arguments)});
    }
    auto options = arguments.options;
    rank.meet(recipe, {{"--resume", options.resume},
                       {"--trace", arguments.trace},
                       {"--dry-run", options.dry_run ? "given" : "not given"}});
    options.expect_same = [&](const auto& topic, const auto& facts, auto kind) {
      rank.expect_same(topic, facts, kind);
    };
    options.watch = &rank.watch();
    options.trace_comm = arguments.trace == "comm";
    const auto& mesh = rank.mesh();
    trainer =
        std::make_unique<Trainer>(std::move(recipe), rank.registry(), mesh, mesh.own_world("checkpoint"), options);
    return trainer->run();
  });
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
  command
      ->add_option("--trace", arguments->trace,
                   "comm: every step's calls on other ranks and memory in metrics.jsonl, and a table at the end")
      ->check(CLI::IsMember({"comm"}));
  add_plugin_path(*command, line);
  command->add_flag("--dry-run", arguments->options.dry_run, "put everything together, say what it is, and stop");
  command->footer("Example: ditto train configs/digits.toml --set run.steps=100 --local-ranks 2");
  command->callback([arguments, &line] { line.exit_code = train(*arguments, line); });
}

}  // namespace ditto
