// ditto evaluate RUN|CHECKPOINT…
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include <fmt/ranges.h>

#include "apps/ditto/commands.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/evaluate/evaluate.h"
#include "core/evaluate/table.h"
#include "core/formats/text/json.h"
#include "core/process/rank.h"

namespace ditto {

namespace {

struct EvaluateArguments {
  std::vector<std::string> from, sets;
  std::string data, weights = "both", progress = "auto";
  bool all = false, json = false;
  int local_ranks = 0;
};

WhichWeights which(const std::string& word) {
  return word == "ema" ? WhichWeights::average : word == "weights" ? WhichWeights::trained : WhichWeights::both;
}

void evaluate(Rank& rank, const EvaluateArguments& a, const CommandLine& line) {
  auto checkpoints = open_for_evaluation(a.from, a.sets, a.all);
  std::vector<std::string> paths;
  for (const auto& one : checkpoints) paths.push_back(one.path);
  auto& first = checkpoints.front().recipe;
  rank.open(first, line.plugin_path);
  rank.meet(first, {{"checkpoints", fmt::format("{}", fmt::join(paths, ", "))}});
  rank.watch().begin("an evaluation");
  EvaluateCall call;
  call.weights = which(a.weights);
  call.data = a.data;
  call.expect_same = [&](const auto& topic, const auto& facts, auto kind) { rank.expect_same(topic, facts, kind); };
  std::unique_ptr<report::Progress> progress;
  report::ProgressOptions look;
  look.style = report::progress_style(a.progress);
  look.unit = "validation";
  look.rate = "/s";
  call.say = [&](const std::string& said) { progress ? progress->message(said) : report::tell(said); };
  call.progress = [&](int64_t done, int64_t all) {
    if (rank.mesh().rank() != 0) return;
    if (!progress) progress = std::make_unique<report::Progress>(all, look);
    report::ProgressState state;
    state.done = done;
    progress->update(state);
  };
  const auto result = evaluate(checkpoints, rank.registry(), rank.mesh(), call);
  if (rank.mesh().rank() != 0) return;
  if (progress) progress->finish();
  std::cout << (a.json ? formats::ascii_json(to_json(result)) + "\n" : to_text(result)) << std::flush;
}

int evaluate(const EvaluateArguments& a, const CommandLine& line) {
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks);
  Rank rank(rank_info());
  return rank.run([&] {
    evaluate(rank, a, line);
    return 0;
  });
}

}  // namespace

void add_evaluate_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand(
      "evaluate", "Hold checkpoints and runs against the same held-out samples: losses by level of noise");
  auto a = std::make_shared<EvaluateArguments>();
  command->add_option("from", a->from, "runs' folders (the newest checkpoint of each), or checkpoints")->required();
  command->add_flag("--all", a->all, "every checkpoint of the runs that are named");
  command->add_option(
      "--data", a->data,
      "another held-out set: a folder of shards, or what the runs' source reads; default: each run's own");
  command->add_option("--weights", a->weights, "both, ema (if there is one) or weights")
      ->check(CLI::IsMember({"both", "ema", "weights"}))
      ->capture_default_str();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of all recipes, as in validate.samples=1000")
      ->allow_extra_args(false);
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--json", a->json, "for programs, with all digits");
  command->add_option("--progress", a->progress, "auto, bar, plain or none")->capture_default_str();
  add_plugin_path(*command, line);
  command->footer("Example: ditto evaluate runs/digits runs/other --all");
  command->callback([a, &line] { line.exit_code = evaluate(*a, line); });
}

}  // namespace ditto
