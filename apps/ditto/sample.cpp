// ditto sample RUN|CHECKPOINT --out DIR
#include <CLI/CLI.hpp>
#include <iostream>

#include <fmt/format.h>
#include <torch/types.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/interrupt.h"
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
  if (a.steps) sets.push_back(fmt::format("sampler.steps={}", *a.steps));
  if (!a.adapter.empty()) sets.push_back("adapter.weights=" + formats::render_toml_value({a.adapter, {}}));
  sets.insert(sets.end(), a.sets.begin(), a.sets.end());
  return sets;
}

// Of a recipe without guidance: classifier-free.
void set_guidance(Recipe& recipe, const std::string& option, const OptionValue& value, const std::string& where) {
  auto& guidance = recipe.guidance;
  if (guidance.plugin == "none") guidance.plugin = kScaleGuidance;
  guidance.options.given[option] = {value, where};
}

}  // namespace

SavedModel open_for_sampling(const SampleArguments& a) {
  auto saved = open_saved(a.from, sets_of(a), a.network);
  if (a.guidance) set_guidance(saved.recipe, "scale", *a.guidance, fmt::format("--guidance {}", *a.guidance));
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

// On all ranks alike: they have the same samples.
void require_finite(const torch::Tensor& samples, const std::vector<int64_t>& seeds) {
  const auto is_finite = samples.flatten(1).isfinite().all(1).cpu();
  for (int64_t i = 0; i < is_finite.numel(); ++i)
    if (!is_finite[i].item<bool>())
      throw Error(ErrorKind::numeric, fmt::format("the sample of seed {}", seeds[static_cast<size_t>(i)]),
                  "holds numbers that are not finite, and nothing is written",
                  "sample with --set run.precision=bf16 or fp32, with less guidance, or from an earlier checkpoint");
}

// Guidance that is asked for here acts, or is refused; of the run's own it is said.
void check_guidance(const SampleArguments& a, const SavedModel& saved, const Assembly& assembly,
                    const SampleRequests& requests) {
  std::string asked;
  for (const auto& set : a.sets)
    if (set.starts_with("guidance.")) asked = "--set " + set;
  if (!a.guidance_channels.empty()) asked = "--guidance-channels " + a.guidance_channels;
  if (a.guidance) asked = fmt::format("--guidance {}", *a.guidance);
  const auto tell = [&](const std::string& line) {
    if (assembly.mesh.rank() == 0) report::tell("warning: " + line);
  };
  if (const auto idle = idle_guidance(*assembly.networks, *assembly.guidance, requests); !idle.empty()) {
    if (!asked.empty()) throw Error(ErrorKind::config, asked, "guidance would have no effect: " + idle, "leave it out");
    return tell("guidance has no effect: " + idle);
  }
  if (const auto null = unlearned_null(saved.recipe, *assembly.guidance); !null.empty() && !requests.negative)
    tell(null + (saved.began_with_others ? ", unless what its training began with has learned it" : ""));
}

void sample(Rank& rank, const SampleArguments& a, const CommandLine& line) {
  auto saved = open_for_sampling(a);
  if (a.cache_error && !saved.recipe.cache)
    throw Error(ErrorKind::config, "--cache-error", "there is no cache", "add --cache first_block, or leave it out");
  rank.open(saved.recipe, line.plugin_path);
  rank.meet(saved.recipe);
  const auto& mesh = rank.mesh();
  AssemblyParts parts;
  parts.sampler = true;
  parts.latents = true;  // the outputs say whether pictures are needed
  parts.saved = saved.shapes;
  parts.weights = RunningModel::Weights::room;
  Assembly assembly(saved.recipe, rank.registry(), mesh, parts, {});
  refuse_other_encoders(saved, *assembly.networks);
  const auto asked = read_requests(a, assembly);
  check_guidance(a, saved, assembly, asked.requests);
  SampleOutputs outputs(a, asked, saved, *assembly.networks);

  GenerateOptions options;
  options.steps = saved.recipe.sampler_steps;
  options.clip = clip_of(saved.recipe);
  options.decisions = &outputs.decisions;
  options.cache = assembly.cache.get();
  options.batch = a.batch;
  options.watch = &rank.watch();
  if (!a.noise.empty()) options.noise = read_noise(a, asked.requests);
  assembly.networks->load(saved, a.weights);
  std::optional<report::Progress> progress;
  const auto count = static_cast<int64_t>(asked.requests.seeds.size());
  int64_t before = 0;  // samples of an earlier pass
  if (mesh.rank() == 0) {
    outputs.prepare();
    progress.emplace(a.cache_error ? 2 * count : count, progress_look(a));
  }
  // Of this rank's first batch: what it computes later it computes by the same calls.
  std::optional<OneNumberGuard> guard;
  if (is_one_number(saved.recipe)) guard.emplace();
  options.progress = [&](int64_t done, int64_t all) {
    if (guard) guard->check();
    guard.reset();
    if (!progress) return;
    report::ProgressState state;
    state.done = before + std::min(done * mesh.data_ranks(), all);
    progress->update(state);
  };
  const auto make = [&] {
    return generate(*assembly.networks, *assembly.sampler, *assembly.guidance, asked.requests, options);
  };
  const auto latents = make();
  if (a.cache_error) {
    options.cache = nullptr;
    options.decisions = nullptr;
    before = count;
    outputs.compare(latents, make());
  }
  require_finite(latents, asked.requests.seeds);
  if (mesh.rank() != 0) return outputs.help_to_decode(latents);
  progress->finish();
  rank.watch().begin("writing samples");
  outputs.write(latents);
  std::cout << outputs.report();
}

int sample(const SampleArguments& a, const CommandLine& line) {
  const auto info = a.local_ranks > 0 ? RankInfo{} : rank_info();
  if (info.rank == 0 && info.launcher != "local ranks")
    say_when_interrupted("SIGINT: ends at once; pictures that are not written yet are lost\n");
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks);
  Rank rank(info);
  return rank.run([&] {
    sample(rank, a, line);
    return 0;
  });
}

}  // namespace

void add_request_options(CLI::App& command, SampleArguments& a) {
  command.add_option(
      "--seeds", a.seeds,
      "seeds, as 5,7 or 0-99: one sample each, 000005.png; a seed again: 000005-1.png; default: 0-15, or "
      "0, 1, … where --condition has a row for each sample");
  command.add_option(
      "--classes", a.classes,
      "classes by number, as 0,3,7 or 0-9, or by name where data.names has them (names that are numbers are "
      "names; number:3 is a number): the i-th sample is of the i-th, modulo their count; default: all");
  command.add_option("--condition", a.condition,
                     "safetensors file of what the model takes, by name (text, text_mask, …): a row a sample, or one "
                     "for all");
  command.add_option("--negative", a.negative, "the same, for what guidance leads away from; default: no condition");
  command.add_option("--prompts", a.prompts,
                     "a text, or a file of texts, one a line: for recipes with an encoder of text");
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
  command.add_option("--steps", a.steps, "steps from noise to data")->check(CLI::Range(1, 1'000'000));
  command
      .add_option("--guidance", a.guidance,
                  "guidance.scale; 1: none; where the recipe has no guidance it is classifier-free")
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
  command.add_option("--network", a.network, "another network that trained in the run, [network.NAME]");
  command.add_option("--set", a.sets, "KEY=VALUE: overrides an option of the run's recipe")->allow_extra_args(false);
}

namespace {

// What is written.
void add_output_options(CLI::App& command, SampleArguments& a) {
  command.add_option("--out", a.out,
                     "folder for pictures (PNG) or videos (animated WebP), samples.jsonl, and a sheet of all");
  command.add_flag("--overwrite", a.overwrite,
                   "remove the samples that an earlier command has left in --out, once those of this one are computed; "
                   "default: such a folder is refused");
  command.add_option("--name", a.name,
                     "names of the files, with {seed}, {index} and {class}, as {class}/{seed}; each another");
  command.add_option("--fps", a.fps, "frames a second of videos; default: 8")->check(CLI::Range(0.1, 100.0));
  command.add_option(
      "--npz", a.npz,
      "write all samples as one array arr_0, uint8 [N, H, W, C], of videos [N, F, H, W, C], and classes as "
      "arr_1: what ADM's evaluator reads");
  command.add_option(
      "--save-latents", a.save_latents,
      "write the samples before decoding to this safetensors file, as \"latents\", first of all; all that "
      "is written where the recipe has no decoder for them");
  command.add_flag("--json", a.json, "print files and settings as one JSON object");
  command.add_option("--progress", a.progress, "auto, bar, plain or none")->capture_default_str();
}

}  // namespace

void add_sample_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("sample", "Make pictures or videos from a trained model");
  auto a = std::make_shared<SampleArguments>();
  command->add_option("from", a->from, "a run's folder, or a checkpoint")->required();
  add_request_options(*command, *a);
  add_sampler_options(*command, *a);
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
