// ditto train RECIPE
#include <iostream>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/ditto/commands.h"
#include "core/formats/text/json.h"
#include "core/plan/dry_run.h"
#include "core/plan/rehearsal.h"
#include "core/process/launch.h"
#include "core/process/rank.h"
#include "core/ranks/stop.h"
#include "core/train/trainer.h"

namespace ditto {

namespace {

struct TrainArguments {
  std::string recipe;
  std::vector<std::string> sets;
  TrainOptions options;
  int local_ranks = 0;
  std::vector<std::string> trace;
  bool dry_run = false, json = false;
  int ranks = 0;  // of a dry run; 0: as many as it was started with
  int64_t text_length = 256;
};

Recipe open_recipe(Rank& rank, const TrainArguments& arguments, const CommandLine& line) {
  Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
  rank.open(recipe, line.plugin_path);
  declare_components(recipe, rank.registry());
  check_recipe(recipe, rank.registry());
  return recipe;
}

// One process stands for all ranks; of those that a launcher has started, the first.
int show_dry_run(const TrainArguments& arguments, const CommandLine& line) {
  const auto info = rank_info();
  if (info.rank > 0) return 0;
  Rank rank{RankInfo{}};
  return rank.run([&] {
    Recipe recipe = Recipe::read(arguments.recipe, arguments.sets);
    auto here = recipe;  // whose device need not be here
    here.run.device = "cpu";
    here.run.transport.clear();
    rank.open(here, line.plugin_path);
    declare_components(recipe, rank.registry());
    check_recipe(recipe, rank.registry());
    const int started = std::max(arguments.local_ranks, info.world_size);
    const auto result =
        dry_run(recipe, rank.registry(), arguments.ranks > 0 ? arguments.ranks : started, arguments.text_length);
    std::cout << (arguments.json ? formats::ascii_json(to_json(result)) + "\n" : to_text(result)) << std::flush;
    return 0;
  });
}

// Whether a recipe's parts go together on so many ranks, before any of them starts and a folder is made.
int rehearse(const TrainArguments& arguments, const CommandLine& line) {
  Rank rank{RankInfo{}};
  return rank.run([&] {
    const auto recipe = open_recipe(rank, arguments, line);
    return rehearse_layout(recipe, rank.registry(), arguments.local_ranks);
  });
}

int train(const TrainArguments& arguments, const CommandLine& line) {
  if (arguments.dry_run) return show_dry_run(arguments, line);
  if (arguments.local_ranks > 0) {
    answer_stop_signals({});
    return start_ranks(line, arguments.local_ranks, [&] { return rehearse(arguments, line); });
  }
  const auto info = rank_info();
  answer_stop_signals(info);
  Rank rank(info);
  std::unique_ptr<Trainer> trainer;  // its end may wait for lost peers: a failure is told before
  return rank.run([&] {
    Recipe recipe = open_recipe(rank, arguments, line);
    auto options = arguments.options;
    options.trace = trace_options(arguments.trace);
    rank.meet(recipe, {{"--resume", options.resume}, {"--trace", fmt::format("{}", fmt::join(arguments.trace, ", "))}});
    options.expect_same = [&](const auto& topic, const auto& facts, auto kind) {
      rank.expect_same(topic, facts, kind);
    };
    options.watch = &rank.watch();
    const auto& mesh = rank.mesh();
    trainer =
        std::make_unique<Trainer>(std::move(recipe), rank.registry(), mesh, mesh.own_world("checkpoint"), options);
    return trainer->run();
  });
}

}  // namespace

void add_train_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("train", "Train what a recipe describes, or go on training it");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("recipe", arguments->recipe, "the recipe, a TOML file, or the folder of a run")->required();
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
                   "comm: every step's calls on other ranks and memory, kernels: which variant computed which op, both "
                   "in metrics.jsonl and in a table at the end; FILE.json: a Chrome trace of the last step")
      ->allow_extra_args(false);
  add_plugin_path(*command, line);
  auto* dry = command->add_flag("--dry-run", arguments->dry_run,
                                "say what a run takes, memory and operations, without data, memory or other ranks");
  command->add_option("--ranks", arguments->ranks, "of a dry run: on so many ranks")
      ->check(CLI::Range(1, 10'000'000))
      ->needs(dry);
  command
      ->add_option("--text-length", arguments->text_length, "of a dry run: tokens of a text, where data has any number")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(dry);
  command->add_flag("--json", arguments->json, "of a dry run: for programs")->needs(dry);
  command->footer("Example: ditto train configs/digits.toml --set run.steps=100 --local-ranks 2");
  command->callback([arguments, &line] { line.exit_code = train(*arguments, line); });
}

}  // namespace ditto
