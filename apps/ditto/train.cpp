// ditto train RECIPE
#include <iostream>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <ditto/text.h>

#include "apps/ditto/cascade.h"
#include "apps/ditto/commands.h"
#include "core/formats/text/json.h"
#include "core/plan/dry_run.h"
#include "core/plan/forward_peak.h"
#include "core/plan/rehearsal.h"
#include "core/process/launch.h"
#include "core/process/rank.h"
#include "core/ranks/stop.h"
#include "core/train/trainer.h"

namespace ditto {

namespace {

struct TrainArguments {
  std::string recipe, stage;
  std::vector<std::string> sets;
  TrainOptions options;
  int local_ranks = 0;
  std::vector<std::string> trace;
  bool dry_run = false, json = false;
  int ranks = 0;  // of a dry run; 0: as many as it was started with
  int64_t text_length = 256;
  int64_t samples = 0;  // of the forward of a dry run; 0: the whole training is asked for
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
    if (arguments.samples > 0) {
      const auto peak = forward_peak(recipe, rank.registry(), arguments.samples, arguments.text_length);
      std::cout << (arguments.json ? formats::ascii_json(to_json(peak)) + "\n" : to_text(peak)) << std::flush;
      return 0;
    }
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

int train_one(const TrainArguments& arguments, const CommandLine& line) {
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

// As the command line of its own ranks says it.
std::vector<std::string> words_of(const TrainArguments& arguments, const CommandLine& line) {
  std::vector<std::string> words{"train", arguments.recipe, "--resume", arguments.options.resume};
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const auto& value : values) words.insert(words.end(), {option, value});
  };
  add("--set", arguments.sets);
  add("--allow-change", arguments.options.allow_change);
  add("--trace", arguments.trace);
  add("--plugin-path", line.plugin_path);
  return words;
}

TrainArguments of_stage(TrainArguments arguments, const CascadeStage& stage) {
  arguments.recipe = stage.recipe;
  arguments.sets = stage.to_train();
  arguments.stage.clear();
  return arguments;
}

// What is of one run and would be given to several.
void refuse_of_all(const TrainArguments& arguments) {
  if (!arguments.stage.empty()) return;
  const auto& resume = arguments.options.resume;
  if (resume != "auto" && resume != "never")
    throw Error(ErrorKind::config, "--resume " + resume, "is a checkpoint of one stage, and a cascade has several",
                "say which: --stage NAME");
  for (const auto& what : arguments.trace)
    if (what.ends_with(".json"))
      throw Error(ErrorKind::config, "--trace " + what, "is one file, and a cascade's stages would write it in turn",
                  "say which: --stage NAME");
}

int show_dry_runs(const TrainArguments& arguments, const CommandLine& line) {
  if (rank_info().rank > 0) return 0;
  const auto cascade = read_cascade(arguments.recipe, arguments.sets);
  if (const int code = check_stages(cascade, line)) return code;
  const auto show = [&](const CascadeStage& stage) { return show_dry_run(of_stage(arguments, stage), line); };
  if (!arguments.json) return for_each_stage(cascade, arguments.stage, show);
  const char* before = "{";
  for (const auto& stage : cascade.stages) {
    if (!arguments.stage.empty() && &stage != &cascade.stages[cascade.place_of(arguments.stage, "--stage")]) continue;
    std::cout << before << formats::ascii_json(nlohmann::json(stage.name)) << ": ";
    if (const int code = show(stage)) return code;
    before = ", ";
  }
  std::cout << "}\n" << std::flush;
  return 0;
}

int train_stages(const TrainArguments& arguments, const CommandLine& line) {
  refuse_of_all(arguments);
  if (arguments.dry_run) return show_dry_runs(arguments, line);
  CascadeCall call;
  call.path = arguments.recipe;
  call.sets = arguments.sets;
  call.stage = arguments.stage;
  call.local_ranks = arguments.local_ranks;
  call.skips_trained = arguments.options.resume == "auto";
  call.allow_change = arguments.options.allow_change;
  call.train = [&](const CascadeStage& stage) { return train_one(of_stage(arguments, stage), line); };
  call.words = [&](const CascadeStage& stage) { return words_of(of_stage(arguments, stage), line); };
  call.rehearse = [&](const CascadeStage& stage) { return rehearse(of_stage(arguments, stage), line); };
  return train_cascade(call, line);
}

int train(const TrainArguments& arguments, const CommandLine& line) {
  if (is_cascade(arguments.recipe)) return train_stages(arguments, line);
  if (!arguments.stage.empty())
    throw Error(ErrorKind::config, "--stage " + arguments.stage,
                "is of a cascade, and " + shown(arguments.recipe) + " is one recipe", "leave it out");
  if (arguments.dry_run) return show_dry_run(arguments, line);
  if (arguments.local_ranks == 0) return train_one(arguments, line);
  answer_stop_signals({});
  return start_ranks(line, arguments.local_ranks, [&] { return rehearse(arguments, line); });
}

}  // namespace

void add_train_command(CLI::App& app, CommandLine& line) {
  auto* command =
      app.add_subcommand("train", "Train what a recipe describes, or all stages of a cascade, or go on training it");
  auto arguments = std::make_shared<TrainArguments>();
  command
      ->add_option("recipe", arguments->recipe,
                   "the recipe or the cascade, a TOML file, or the folder of a run or a cascade")
      ->required();
  command
      ->add_option("--set", arguments->sets,
                   "KEY=VALUE: overrides an option, as in --set run.steps=100; of a cascade's stage, STAGE.KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--stage", arguments->stage, "of a cascade: this stage alone, 1 … or its name");
  command
      ->add_option("--resume", arguments->options.resume,
                   "auto: from the run's newest whole checkpoint; never; or a checkpoint")
      ->capture_default_str();
  command
      ->add_option("--allow-change", arguments->options.allow_change,
                   "KEY (or section) that may differ from the run that is resumed")
      ->allow_extra_args(false);
  auto* local = command->add_option("--local-ranks", arguments->local_ranks, "start this many ranks on this machine")
                    ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--trace", arguments->trace,
                   "comm: every step's calls on other ranks and memory, kernels: which variant computed which op, both "
                   "in metrics.jsonl and in a table at the end; FILE.json: a Chrome trace of the last step")
      ->allow_extra_args(false);
  add_plugin_path(*command, line);
  auto* dry = command->add_flag("--dry-run", arguments->dry_run,
                                "say what a run takes, memory and operations, without data, memory or other ranks");
  auto* ranks = command->add_option("--ranks", arguments->ranks, "of a dry run: on so many ranks")
                    ->check(CLI::Range(1, 10'000'000))
                    ->needs(dry);
  command
      ->add_option("--text-length", arguments->text_length, "of a dry run: tokens of a text, where data has any number")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(dry);
  auto* forward =
      command
          ->add_option("--forward", arguments->samples,
                       "of a dry run: instead, the memory of one forward of so many samples (1), as sampling has it")
          ->expected(0, 1)
          ->check(CLI::Range(1, 1'000'000))
          ->default_str("1")
          ->needs(dry)
          ->excludes(ranks)
          ->excludes(local);
  command->add_flag("--json", arguments->json, "of a dry run: for programs")->needs(dry);
  command->footer("Example: ditto train configs/digits.toml --set run.steps=100 --local-ranks 2");
  command->callback([arguments, forward, &line] {
    if (forward->count() > 0 && arguments->samples < 1)
      throw Error(ErrorKind::config, "--forward", "is empty", "give a number of samples, or the word alone");
    line.exit_code = train(*arguments, line);
  });
}

}  // namespace ditto
