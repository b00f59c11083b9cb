// ditto encode RECIPE --out FOLDER
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/interrupt.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/encode/encode.h"
#include "core/process/launch.h"
#include "core/process/rank.h"

namespace ditto {

namespace {

struct EncodeArguments {
  std::string recipe, progress = "auto";
  std::vector<std::string> sets;
  EncodeOptions options;
  int local_ranks = 0;
};

// How far rank 0 is, whose shards are one of so many ranks'.
class EncodeProgress {
 public:
  EncodeProgress(const std::string& style, int64_t there, int64_t all, int64_t ranks)
      : there_(there), all_(all), ranks_(ranks), bar_(all, look_of(style), at(0)) {}
  void update(int64_t done) { bar_.update(at(done)); }
  void finish() { bar_.finish(); }

 private:
  static report::ProgressOptions look_of(const std::string& style) {
    report::ProgressOptions look;
    look.style = report::progress_style(style);
    look.unit = "sample";
    look.rate = "/s";
    return look;
  }
  report::ProgressState at(int64_t done) const {
    report::ProgressState state;
    state.done = std::min(there_ + done * ranks_, all_);
    return state;
  }
  const int64_t there_, all_, ranks_;
  report::Progress bar_;
};

// The recipe as it trains: where it names encoded samples already, of its own data.
void encode(Rank& rank, const EncodeArguments& a, const CommandLine& line) {
  auto recipe = Recipe::read(a.recipe, a.sets);
  recipe.loader.encoded.clear();
  rank.open(recipe, line.plugin_path);
  declare_components(recipe, rank.registry());
  rank.meet(recipe, {{"--out", a.options.out},
                     {"--batch", std::to_string(a.options.batch)},
                     {"--shard-samples", std::to_string(a.options.shard_samples)},
                     {"--format", a.options.format},
                     {"--flip", a.options.flip ? "true" : "false"}});
  rank.watch().begin("encoding");
  AssemblyParts parts;
  parts.data = true;
  parts.latents = true;
  parts.weights = RunningModel::Weights::none;
  parts.opened = [&](const Source* train, const Source* validation) {
    auto facts = facts_of(*train, "data");
    if (validation) facts.merge(facts_of(*validation, "validation data"));
    rank.expect_same("data", facts, ErrorKind::data);
  };
  Assembly assembly(recipe, rank.registry(), rank.mesh(), parts, {});
  const bool leads = rank.mesh().rank() == 0;
  auto options = a.options;
  std::optional<EncodeProgress> progress;
  options.say = [&](const std::string& said) { report::tell(said); };
  options.alive = [&] { rank.watch().begin("encoding"); };
  int64_t all = 0;
  options.begun = [&](int64_t there, int64_t of_all) {
    all = of_all;
    report::tell(fmt::format("{} samples{}", all,
                             there == 0     ? ""
                             : there == all ? ": all are there already"
                                            : fmt::format(", of which {} are there already", there)));
    if (there < all) progress.emplace(a.progress, there, all, rank.mesh().data_ranks());
  };
  options.progress = [&](int64_t done) {
    if (progress) progress->update(done);
  };
  const auto bad = encode_data(assembly, options);
  if (progress) progress->finish();
  if (!leads) return;
  if (bad > 0)
    report::tell(fmt::format("{} of {} samples did not decode, nor will they in a training on these", bad, all));
  std::cout << (options.format == EncodeOptions::kNemo
                    ? fmt::format("encoded as NeMo's parts: {}\n", shown(options.out))
                    : fmt::format("encoded: {}; train with --set loader.encoded={}\n", shown(options.out),
                                  shown(options.out)));
}

int encode(const EncodeArguments& a, const CommandLine& line) {
  const auto info = a.local_ranks > 0 ? RankInfo{} : rank_info();
  if (info.rank == 0 && info.launcher != "local ranks")
    say_when_interrupted("SIGINT: ends at once; the same command goes on with the shards that are not written yet\n");
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks);
  Rank rank(info);
  return rank.run([&] {
    encode(rank, a, line);
    return 0;
  });
}

}  // namespace

void add_encode_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("encode", "Keep what a recipe's encoders make of its data, to train on it");
  auto a = std::make_shared<EncodeArguments>();
  auto& options = a->options;
  command->add_option("recipe", a->recipe, "the recipe, a TOML file")->required();
  command->add_option("--out", options.out, "folder for shards and encoded.json; the same command goes on in it")
      ->required();
  command->add_flag("--flip", options.flip, "mirrored pictures too, for loader.flip");
  command
      ->add_option("--format", options.format,
                   "safetensors, which loader.encoded reads; nemo: .pth, .pickle and .json a sample")
      ->check(CLI::IsMember({EncodedNotes::kSafetensors, EncodeOptions::kNemo}))
      ->capture_default_str();
  command->add_option("--batch", options.batch, "samples encoded at once")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--shard-samples", options.shard_samples, "samples a shard")
      ->check(CLI::Range(int64_t{1}, EncodedNotes::kMostOfShard))
      ->capture_default_str();
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the recipe")->allow_extra_args(false);
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--progress", a->progress, "auto, bar, plain or none")->capture_default_str();
  add_plugin_path(*command, line);
  command->footer("Example: ditto encode configs/digits.toml --out digits-encoded");
  command->callback([a, &line] { line.exit_code = encode(*a, line); });
}

}  // namespace ditto
