// ditto sample RUN|CHECKPOINT --out DIR
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/interrupt.h"
#include "apps/ditto/sample_cascade.h"
#include "apps/ditto/sample_outputs.h"
#include "apps/ditto/sample_requests.h"
#include "core/assembly/one_number_guard.h"
#include "core/config/numerics.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/formats/text/toml.h"
#include "core/process/rank.h"
#include "core/sample/clip.h"

namespace ditto {

namespace {

// The command line's words as the recipe's.
std::vector<std::string> sets_of(const SampleArguments& a) {
  std::vector<std::string> sets;
  if (!a.sampler.empty()) sets.push_back("sampler.plugin=" + a.sampler);
  if (!a.cache.empty()) sets.push_back("cache.plugin=" + a.cache);
  if (!a.steps.empty()) sets.push_back(fmt::format("sampler.steps={}", a.steps.front()));
  if (!a.adapter.empty()) sets.push_back("adapter.weights=" + formats::render_toml_value({a.adapter, {}}));
  sets.insert(sets.end(), a.sets.begin(), a.sets.end());
  return sets;
}

template <class Number>
void require_one(const std::vector<Number>& numbers, const std::string& option) {
  if (numbers.size() > 1)
    throw Error(ErrorKind::config, option, fmt::format("has {} values, and a run takes one", numbers.size()),
                "give one; several are of a cascade's stages");
}

// Of a recipe without guidance: classifier-free.
void set_guidance(Recipe& recipe, const std::string& option, const OptionValue& value, const std::string& where) {
  auto& guidance = recipe.guidance;
  if (guidance.plugin == "none") guidance.plugin = kScaleGuidance;
  guidance.options.given[option] = {value, where};
}

}  // namespace

SavedModel open_for_sampling(const SampleArguments& a) {
  require_one(a.steps, "--steps");
  require_one(a.guidance, "--guidance");
  auto saved = open_saved(a.from, sets_of(a), a.network);
  if (!a.guidance.empty())
    set_guidance(saved.recipe, "scale", a.guidance.front(), fmt::format("--guidance {}", a.guidance.front()));
  if (!a.guidance_channels.empty())
    set_guidance(saved.recipe, "channels", a.guidance_channels, "--guidance-channels " + a.guidance_channels);
  return saved;
}

void refuse_other_encoders(const SavedModel& saved, const Networks& networks) {
  for (const auto& encoder : networks.encoders) {
    const auto noted = saved.notes.find(encoder->section);
    if (noted == saved.notes.end() || noted->second == encoder->fingerprint()) continue;
    throw Error(ErrorKind::checkpoint, saved.path,
                "was trained with other weights than [" + encoder->section + "] has now",
                "name the same ones: --set " + encoder->section + ".weights=FILE");
  }
}

namespace {

report::ProgressOptions progress_look(const SampleArguments& a) {
  report::ProgressOptions look;
  look.style = report::progress_style(a.progress);
  look.unit = "sample";
  look.rate = "/s";
  return look;
}

void require_finite(const MadeBatch& made, const std::vector<int64_t>& seeds) {
  const auto is_finite = made.samples.flatten(1).isfinite().all(1).cpu();
  for (int64_t i = 0; i < is_finite.numel(); ++i)
    if (!is_finite[i].item<bool>())
      throw Error(ErrorKind::numeric, fmt::format("the sample of seed {}", seeds[static_cast<size_t>(made.first + i)]),
                  "holds numbers that are not finite, and is not written",
                  "sample with --set run.precision=bf16 or fp32, with less guidance, or from an earlier checkpoint");
}

// Guidance that is asked for here acts, or is refused; of the run's own it is said.
void check_guidance(const SampleArguments& a, const SavedModel& saved, const Assembly& assembly,
                    const SampleRequests& requests) {
  std::string asked;
  for (const auto& set : a.sets)
    if (set.starts_with("guidance.")) asked = "--set " + set;
  if (!a.guidance_channels.empty()) asked = "--guidance-channels " + a.guidance_channels;
  if (!a.guidance.empty()) asked = fmt::format("--guidance {}", a.guidance.front());
  const auto tell = [&](const std::string& line) {
    if (assembly.mesh.rank() == 0) report::tell("warning: " + line);
  };
  if (const auto idle = idle_guidance(*assembly.networks, *assembly.guidance, requests); !idle.empty()) {
    if (!asked.empty()) throw Error(ErrorKind::config, asked, "guidance would have no effect: " + idle, "leave it out");
    return tell("guidance has no effect: " + idle);
  }
  const bool has_negative = requests.negative || !requests.negative_prompts.empty();
  if (const auto null = unlearned_null(saved.recipe, *assembly.guidance); !null.empty() && !has_negative)
    tell(null + (saved.began_with_others ? ", unless what its training began with has learned it" : ""));
}

// How far rank 0 is; of the others' batches it takes the time of its own.
class SampleProgress {
 public:
  SampleProgress(const SampleArguments& a, int64_t count, int64_t to_make, int64_t ranks)
      : to_make_(to_make), there_(count - to_make), ranks_(ranks), bar_(count, progress_look(a), at(0)) {}
  void update(int64_t done_here) {
    const auto done = std::min(done_here * ranks_, to_make_);
    bar_.update(at(done));
    if (std::exchange(is_first_, false) && done < to_make_) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
      const auto left = took.count() * static_cast<double>(to_make_ - done) / static_cast<double>(done);
      bar_.message(fmt::format("the first {} took {}; at that rate the other {} take {}", done,
                               report::duration_text(took.count()), to_make_ - done, report::duration_text(left)));
    }
  }
  void finish() { bar_.finish(); }

 private:
  report::ProgressState at(int64_t done) const {
    report::ProgressState state;
    state.done = there_ + done;
    return state;
  }
  const int64_t to_make_, there_, ranks_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool is_first_ = true;
  report::Progress bar_;
};

// Makes what `outputs` lack.
void make(Rank& rank, const SampleArguments& a, Assembly& assembly, const SampleRequests& requests,
          GenerateOptions& options, SampleOutputs& outputs, const std::vector<int64_t>& batches) {
  const auto& mesh = rank.mesh();
  const auto count = static_cast<int64_t>(requests.seeds.size());
  const auto at_once = batch_size(*assembly.sampler, options);
  int64_t to_make = 0;
  for (const auto batch : batches) to_make += std::min(at_once, count - batch * at_once);
  std::optional<SampleProgress> progress;
  if (mesh.rank() == 0) progress.emplace(a, count, to_make, mesh.data_ranks());
  options.progress = [&](int64_t done) {
    if (progress) progress->update(done);
  };
  // Of this rank's first batch: what it computes later it computes by the same calls.
  std::optional<OneNumberGuard> guard;
  if (is_one_number(assembly.recipe)) guard.emplace();
  auto uncached = options;
  uncached.cache = nullptr;
  uncached.decisions = nullptr;
  uncached.progress = {};
  const auto again = [&](const MadeBatch& made) {  // each rank its own
    generate(*assembly.networks, *assembly.sampler, *assembly.guidance, requests, uncached,
             std::vector<int64_t>(static_cast<size_t>(mesh.data_ranks()), made.first / at_once),
             [&](const MadeBatch& whole) { outputs.compare(made.samples, whole.samples); });
  };
  const auto take = [&](const MadeBatch& made) {
    if (guard) guard->check();
    guard.reset();
    if (made.is_own) require_finite(made, requests.seeds);
    if (a.cache_error) again(made);
    rank.watch().begin("writing samples");
    outputs.take(made);
  };
  generate(*assembly.networks, *assembly.sampler, *assembly.guidance, requests, options, batches, take);
  if (progress) progress->finish();
}

void sample(Rank& rank, const SampleArguments& a, const CommandLine& line) {
  auto saved = open_for_sampling(a);
  if (a.cache_error && !saved.recipe.cache)
    throw Error(ErrorKind::config, "--cache-error", "there is no cache", "add --cache first_block, or leave it out");
  if (!saved.recipe.sampler)
    throw Error(ErrorKind::config, saved.path, "was trained by a recipe that says no sampler",
                "choose one: --sampler NAME (`ditto plugins list sampler`)");
  rank.open(saved.recipe, line.plugin_path);
  rank.meet(saved.recipe);
  AssemblyParts parts;
  parts.sampler = true;
  parts.latents = true;  // the outputs say whether pictures are needed
  parts.saved = saved.shapes;
  parts.weights = RunningModel::Weights::room;
  Assembly assembly(saved.recipe, rank.registry(), rank.mesh(), parts, {});
  refuse_other_encoders(saved, *assembly.networks);
  const auto asked = read_requests(a, assembly);
  check_guidance(a, saved, assembly, asked.requests);

  GenerateOptions options;
  if (!a.noise.empty()) options.noise = read_noise(a, asked.requests);
  SampleOutputs outputs(a, asked, saved, *assembly.networks, options.noise);
  options.steps = saved.recipe.sampler_steps;
  options.series = a.series;
  options.clip = clip_of(saved.recipe);
  options.decisions = &outputs.decisions;
  options.cache = assembly.cache.get();
  options.batch = a.batch;
  options.watch = &rank.watch();
  options.in_step = outputs.decodes() && assembly.networks->decodes_together();
  const auto batches = outputs.prepare(batch_size(*assembly.sampler, options));
  const bool leads = rank.mesh().rank() == 0;
  if (leads) report::tell(outputs.plan());
  if (!batches.empty()) {
    assembly.networks->load(saved, a.weights);
    make(rank, a, assembly, asked.requests, options, outputs, batches);
  }
  outputs.finish();
  if (leads) outputs.report(std::cout);
  if (const auto& kept = asked.requests.kept; kept && leads && kept->encoded + kept->found > 0)
    report::tell(fmt::format("texts: {} encoded, {} found encoded", kept->encoded, kept->found));
}

int sample_run(const SampleArguments& a, const CommandLine& line) {
  const auto info = a.local_ranks > 0 ? RankInfo{} : rank_info();
  if (info.rank == 0 && info.launcher != "local ranks")
    say_when_interrupted("SIGINT: ends at once; the same command goes on with what is not written yet\n");
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks, {}, words_of(a, line));
  Rank rank(info);
  return rank.run([&] {
    sample(rank, a, line);
    return 0;
  });
}

int sample(const SampleArguments& a, const CommandLine& line) {
  if (is_cascade(a.from)) return sample_cascade(a, [&](const SampleArguments& one) { return sample_run(one, line); });
  for (const auto& [option, is_given] : {std::pair("--until", !a.until.empty()), std::pair("--all", a.all)})
    if (is_given)
      throw Error(ErrorKind::config, option, "is of a cascade, and " + shown(a.from) + " is none", "leave it out");
  return sample_run(a, line);
}

}  // namespace

void add_request_options(CLI::App& command, SampleArguments& a) {
  command.add_option(
      "--seeds", a.seeds,
      "seeds, as 5,7 or 0-99: one sample each, 000005.png; a seed again: 000005-1.png; default: 0-15, or "
      "0, 1, … where --condition or --prompts have a row for each sample");
  command.add_option(
      "--classes", a.classes,
      "classes by number, as 0,3,7 or 0-9, or by name where data.names has them (names that are numbers are "
      "names; number:3 is a number): the i-th sample is of the i-th, modulo their count; default: all");
  command.add_option("--condition", a.condition,
                     "safetensors file of what the model takes, by name (text, text_mask, …), or of what encoders make "
                     "the rest of it of (low): a row a sample, or one for all");
  command.add_option("--negative", a.negative, "the same, for what guidance leads away from; default: no condition");
  command.add_option("--prompts", a.prompts,
                     "a text, or a file of texts, one a line; or of JSON objects, FILE.jsonl, with prompt, and maybe "
                     "negative, seed and size: for recipes with an encoder of texts");
  command.add_option("--negative-prompt", a.negative_prompt,
                     "a text that guidance leads away from, for prompts that say none; default: the null condition");
  command.add_option("--size", a.size,
                     "HEIGHTxWIDTH, of videos FRAMESxHEIGHTxWIDTH, as the model makes samples (latents: "
                     "theirs); default: the size it was trained on");
  command.add_option("--noise", a.noise,
                     "safetensors file with a tensor \"noise\" [n, C, …] to start from, one a sample");
}

void add_sampler_options(CLI::App& command, SampleArguments& a) {
  command.add_option("--sampler", a.sampler, "another sampler than the recipe's");
  command.add_option("--cache", a.cache,
                     "skip blocks that would add what they added before: first_block, teacache, or none");
  command.add_option("--steps", a.steps, "steps from noise to data; of a cascade one number a stage, as 30,20,20")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1'000'000));
  command
      .add_option("--guidance", a.guidance,
                  "guidance.scale; 1: none; where the recipe has no guidance it is classifier-free; of a cascade one "
                  "number a stage")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--guidance-channels", a.guidance_channels, "all, or 3 as in DiT's published samples")
      ->check(CLI::IsMember({"all", "3"}));
  command
      .add_option(
          "--batch", a.batch,
          "samples computed at once; equal batches give equal bits, 1 makes each independent (with run.numerics = "
          "\"one\" any does)")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--weights", a.weights, "ema (if there is one) or weights")
      ->check(CLI::IsMember({"ema", "weights"}))
      ->capture_default_str();
  command.add_option("--adapter", a.adapter,
                     "an adapter for the run's model: its run or checkpoint, or a folder of peft's");
  command
      .add_option("--series", a.series, "of random numbers: another makes other samples of the same seeds; default: 0")
      ->check(CLI::Range(0, 1'000'000));
  command.add_option("--network", a.network, "another network that trained in the run, [network.NAME]");
  command.add_option("--set", a.sets, "KEY=VALUE: overrides an option of the run's recipe")->allow_extra_args(false);
}

namespace {

// What is written.
void add_output_options(CLI::App& command, SampleArguments& a) {
  command.add_option("--out", a.out,
                     "folder for pictures (PNG) or videos (animated WebP), samples.jsonl, and a sheet of all");
  command.add_flag("--overwrite", a.overwrite,
                   "remove what another request has left in --out, --npz and --save-latents, or another program has "
                   "changed there; default: that is refused, and the same request goes on");
  command.add_option("--name", a.name,
                     "names of the files, with {seed}, {index} and {class}, as {class}/{seed}; each another");
  command.add_option("--fps", a.fps, "frames a second of videos; default: 8")->check(CLI::Range(0.1, 100.0));
  command.add_option(
      "--npz", a.npz,
      "write all samples as one array arr_0, uint8 [N, H, W, C], of videos [N, F, H, W, C], and classes as "
      "arr_1: what ADM's evaluator reads");
  command
      .add_option("--npz-channels", a.npz_channels, "3: grey pictures three times in --npz, as that evaluator has them")
      ->check(CLI::IsMember({3}));
  command.add_option("--save-latents", a.save_latents,
                     "write the samples before decoding to this safetensors file, as \"latents\"; all that "
                     "is written where the recipe has no decoder for them");
  command.add_option_function<std::string>(
      "--pass",
      [&a](const std::string& words) {
        const auto at = words.find('=');
        if (at == 0 || at == std::string::npos || at + 1 == words.size())
          throw CLI::ValidationError("--pass",
                                     "is \"" + shown(words) + "\", and NAME=FILE is expected, as low=low.safetensors");
        a.pass = {words.substr(0, at), words.substr(at + 1)};
      },
      "NAME=FILE: write pictures as numbers in -1 … 1, not rounded, to this safetensors file as NAME: what another "
      "model takes in --condition");
  command.add_flag("--json", a.json, "print files and settings as one JSON object");
  command.add_option("--progress", a.progress, "auto, bar, plain or none")->capture_default_str();
}

}  // namespace

void add_sample_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("sample", "Make pictures or videos from a trained model");
  auto a = std::make_shared<SampleArguments>();
  command->add_option("from", a->from, "a run's folder, or a checkpoint; or a cascade's folder")->required();
  add_request_options(*command, *a);
  add_sampler_options(*command, *a);
  command->add_option("--until", a->until, "of a cascade: stop behind the stage that makes this size, as 64 or 64x96");
  command->add_flag("--all", a->all,
                    "of a cascade: write all stages' pictures, each into a folder of its stage's name");
  command->add_option("--kept-texts", a->kept_texts, "folder of what was made of the prompts")->group("");
  command->add_flag("--cache-error", a->cache_error,
                    "sample once more without the cache, and say how far its samples are from those");
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  add_output_options(*command, *a);
  add_plugin_path(*command, line);
  command->footer("Example: ditto sample runs/digits --out samples --classes 0-9 --seeds 0-99 --guidance 2");
  command->callback([a, &line] { line.exit_code = sample(*a, line); });
}

}  // namespace ditto
