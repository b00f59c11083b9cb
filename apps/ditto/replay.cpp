// ditto replay RUN, ditto bisect RUN
#include <iostream>

#include <fmt/format.h>
#include <torch/types.h>
#include <CLI/CLI.hpp>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/assembly/run_notes.h"
#include "core/cascade/cascade.h"
#include "core/formats/text/toml.h"
#include "core/plan/rehearsal.h"
#include "core/process/launch.h"
#include "core/process/rank.h"
#include "core/ranks/stop.h"
#include "core/train/trainer.h"
#include "core/verify/replay.h"

namespace ditto {

namespace {

struct ReplayArguments {
  std::string run, out;
  std::vector<std::string> sets;
  bool bisect = false;
  int64_t from = 0, to = -1;  // -1: the last that has a receipt
  int local_ranks = 0;
};

// The run's, with what is given now; its outputs in a folder of their own, and of them receipts and metrics alone.
Recipe recipe_of(const ReplayArguments& a) {
  auto sets = a.sets;
  const auto out = a.out.empty() ? a.run + "/replay" : a.out;
  sets.push_back("run.output=" + formats::render_toml_value({out, {}}));
  sets.emplace_back("record.receipts=true");
  Recipe recipe = Recipe::read(a.run + "/run.toml", sets);
  recipe.validate.every = recipe.validate.grid_every = 0;
  recipe.log.tensorboard = false;
  return recipe;
}

void say(const RankInfo& rank, const std::string& text) {
  if (rank.rank == 0) std::cout << shown(text, kSentenceShown) << std::endl;
}

Suspects asked_for(const ReplayArguments& a, const Receipts& receipts) {
  const auto last = receipts.lines.empty() ? 0 : receipts.lines.back().step;
  const Suspects steps{a.from, a.to < 0 ? last : a.to};
  if (steps.to > last)
    throw Error(ErrorKind::config, "--to", fmt::format("is {}, and the receipts end after step {}", steps.to, last),
                "choose steps that they have");
  if (steps.from >= steps.to)
    throw Error(ErrorKind::config, "--from",
                fmt::format("is {}, and no step follows it up to {}", steps.from, steps.to), "choose an earlier one");
  return steps;
}

// The first rank looks at the checkpoints; the others hear where.
Suspects suspects_of_all(const ReplayArguments& a, const Receipts& receipts, const Mesh& mesh) {
  Suspects found;
  if (mesh.rank() == 0) found = suspects(a.run, receipts);
  auto numbers = torch::tensor({found.from, found.to, found.checkpoint.value_or(-1)}, torch::kLong);
  numbers = mesh.world().broadcast(numbers, 0);
  const auto* steps = numbers.const_data_ptr<int64_t>();
  return {steps[0], steps[1], steps[2] < 0 ? std::nullopt : std::optional(steps[2])};
}

int tell(const RankInfo& info, const ReceiptCheck& check, const Suspects& steps) {
  if (check.same() && steps.checkpoint)
    say(info, fmt::format("the checkpoint of step {} does not hold what the receipt of its step says, and made again "
                          "the step is: it was changed after it was saved",
                          *steps.checkpoint));
  else
    say(info, check.verdict());
  return check.same() && !steps.checkpoint ? 0 : kNotWhatItSays;
}

struct Opened {
  Receipts receipts;
  Recipe recipe;
};

// Nothing where the chain of receipts is broken, which is said.
std::optional<Opened> open(Rank& rank, const RankInfo& info, const ReplayArguments& a, const CommandLine& line) {
  auto receipts = read_receipts(a.run + "/" + kReceipts);
  if (!receipts.broken.empty()) {
    say(info, fmt::format("{}/{}: the chain is broken at {}", a.run, kReceipts, receipts.broken));
    return {};
  }
  if (!a.bisect) asked_for(a, receipts);
  Recipe recipe = recipe_of(a);
  rank.open(recipe, line.plugin_path);
  declare_components(recipe, rank.registry());
  check_recipe(recipe, rank.registry());
  return Opened{std::move(receipts), std::move(recipe)};
}

int rehearse(const ReplayArguments& a, const CommandLine& line) {
  Rank rank{RankInfo{}};
  return rank.run([&] {
    const auto opened = open(rank, {}, a, line);
    return opened ? rehearse_layout(opened->recipe, rank.registry(), a.local_ranks) : kNotWhatItSays;
  });
}

int replay(const ReplayArguments& a, const CommandLine& line) {
  refuse_cascade(a.run, a.bisect ? "ditto bisect" : "ditto replay");
  if (a.local_ranks > 0) {
    answer_stop_signals({});
    return start_ranks(line, a.local_ranks, [&] { return rehearse(a, line); });
  }
  const auto info = rank_info();
  answer_stop_signals(info);
  Rank rank(info);
  std::unique_ptr<Trainer> trainer;  // its end may wait for lost peers: a failure is told before
  return rank.run([&] {
    auto opened = open(rank, info, a, line);
    if (!opened) return kNotWhatItSays;
    auto& [receipts, recipe] = *opened;
    rank.meet(recipe, {{"receipts", receipts.sha256}});
    const auto& mesh = rank.mesh();
    const auto steps = a.bisect ? suspects_of_all(a, receipts, mesh) : asked_for(a, receipts);
    if (steps.to == steps.from && !steps.checkpoint) {
      say(info, "there is no step to replay");
      return 0;
    }
    ReceiptCheck check(receipts, steps.to);
    TrainOptions options;
    const auto checkpoint = checkpoint_before(a.run, receipts, steps.from);
    options.resume = checkpoint.empty() ? "never" : checkpoint;
    options.kept = kept_in(formats::parse_toml_file(a.run + "/run.toml"));
    options.watch = &rank.watch();
    options.expect_same = [&](const auto& topic, const auto& facts, auto kind) {
      rank.expect_same(topic, facts, kind);
    };
    options.replay = Replay{steps.to, [&](const Receipt& beginning) { check.begins(beginning); },
                            [&](const Receipt& receipt) { return check.made(receipt); }};
    trainer =
        std::make_unique<Trainer>(std::move(recipe), rank.registry(), mesh, mesh.own_world("checkpoint"), options);
    const int code = trainer->run();
    return code ? code : tell(info, check, steps);
  });
}

CLI::App* add(CLI::App& app, CommandLine& line, const std::shared_ptr<ReplayArguments>& a, const char* name,
              const char* help) {
  auto* command = app.add_subcommand(name, help);
  command->add_option("run", a->run, "the run's folder")->required();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option, as in --set parallel.shard=2")
      ->allow_extra_args(false);
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--out", a->out, "folder of what is made again; default RUN/replay");
  add_plugin_path(*command, line);
  command->callback([a, &line] { line.exit_code = replay(*a, line); });
  return command;
}

constexpr const char* kCodes = "\nExit code: 0 where all is as the receipts say, 8 where something is not.";

}  // namespace

void add_replay_commands(CLI::App& app, CommandLine& line) {
  auto a = std::make_shared<ReplayArguments>();
  auto* command = add(app, line, a, "replay", "Make steps of a run again, and compare them with its receipts");
  command->add_option("--from", a->from, "the step after which to begin, or at the checkpoint before it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--to", a->to, "the last step to make; default: the last that has a receipt")
      ->check(CLI::PositiveNumber);
  command->footer(std::string("Example: ditto replay runs/digits --from 200 --to 400 --local-ranks 2 "
                              "--set parallel.shard=2") +
                  kCodes);

  auto b = std::make_shared<ReplayArguments>();
  b->bisect = true;
  command = add(app, line, b, "bisect", "Find the first step of a run that is not what its receipt says");
  command->footer(std::string("Example: ditto bisect runs/digits") + kCodes);
}

}  // namespace ditto
