// ditto evaluate RUN|CHECKPOINT…
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include <fmt/ranges.h>

#include "apps/ditto/commands.h"
#include "core/cascade/cascade.h"
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

// A run or several, or one stage of a cascade.
struct Held {
  std::string stage;  // its name; empty: of no cascade
  std::vector<SavedModel> checkpoints;
};

std::vector<Held> open_all(const EvaluateArguments& a) {
  const auto is_one = [](const std::string& path) { return is_cascade(path); };
  if (std::none_of(a.from.begin(), a.from.end(), is_one)) {
    std::vector<Held> held(1);
    held.front().checkpoints = open_for_evaluation(a.from, a.sets, a.all);
    return held;
  }
  if (a.from.size() > 1)
    throw Error(ErrorKind::config, *std::find_if(a.from.begin(), a.from.end(), is_one),
                "is a cascade, and stands beside others: stages learn pictures of several sizes",
                "name it alone, or the folders of stages of one size");
  const auto cascade = read_cascade(a.from.front(), a.sets);
  std::vector<Held> held;
  for (size_t i = 0; i < cascade.stages.size(); ++i) {
    checkpoint_of_stage(cascade, i);
    const auto& stage = cascade.stages[i];
    held.push_back({stage.name, open_for_evaluation({stage.folder}, stage.sets, a.all)});
  }
  return held;
}

EvaluationResult evaluate(Rank& rank, Held& held, const EvaluateArguments& a) {
  EvaluateCall call;
  call.weights = which(a.weights);
  call.data = a.data;
  call.expect_same = [&](const auto& topic, const auto& facts, auto kind) {
    rank.expect_same(held.stage.empty() ? topic : held.stage + ": " + topic, facts, kind);
  };
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
  auto result = evaluate(held.checkpoints, rank.registry(), rank.mesh(), call);
  if (progress) progress->finish();
  return result;
}

void evaluate(Rank& rank, const EvaluateArguments& a, const CommandLine& line) {
  auto held = open_all(a);
  std::vector<std::string> paths;
  for (const auto& one : held)
    for (const auto& checkpoint : one.checkpoints) paths.push_back(checkpoint.path);
  auto& first = held.front().checkpoints.front().recipe;
  rank.open(first, line.plugin_path);
  rank.meet(first, {{"checkpoints", fmt::format("{}", fmt::join(paths, ", "))}});
  rank.watch().begin("an evaluation");
  nlohmann::ordered_json all;
  for (auto& one : held) {
    const auto result = evaluate(rank, one, a);
    if (rank.mesh().rank() != 0) continue;
    if (a.json) (one.stage.empty() ? all : all[one.stage]) = to_json(result);
    if (!a.json && !one.stage.empty()) std::cout << one.stage << '\n';
    if (!a.json) std::cout << to_text(result) << std::flush;
    one.checkpoints.clear();
  }
  if (a.json && rank.mesh().rank() == 0) std::cout << formats::ascii_json(all) << '\n' << std::flush;
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
  command->add_option("from", a->from, "runs' folders (the newest checkpoint of each), or checkpoints; or a cascade")
      ->required();
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
