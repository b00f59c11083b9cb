// ditto sample RUN|CHECKPOINT --out DIR
#include <CLI/CLI.hpp>
#include <iostream>
#include <utility>

#include "apps/ditto/commands.h"
#include "apps/ditto/sample_cascade.h"
#include "apps/ditto/sample_requests.h"
#include "apps/ditto/sampling.h"
#include "core/process/rank.h"

namespace ditto {

namespace {

int sample_run(const SampleArguments& a, const CommandLine& line) {
  const auto info = a.local_ranks > 0 ? RankInfo{} : rank_info();
  say_that_it_goes_on(info);
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks, {}, words_of(a, line));
  Rank rank(info);
  return rank.run([&] {
    Sampling sampling(rank, a, line);
    sampling.prepare();
    sampling.begin();
    sampling.make_until(sampling.count());
    sampling.finish(std::cout);
    return 0;
  });
}

int sample(const SampleArguments& a, const CommandLine& line) {
  if (is_cascade(a.from))
    return sample_cascade(a, line, [&](const SampleArguments& one) { return sample_run(one, line); });
  for (const auto& [option, is_given] :
       {std::pair("--until", !a.until.empty()), std::pair("--all", a.all), std::pair("--keep", a.keep)})
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
                     "the rest of it of (low): a row a sample, or one for all; of a cascade for all stages, and with "
                     "the picture that one takes it begins there");
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
  command->add_flag("--keep", a->keep,
                    "of a cascade: all stages in memory, and each batch goes through all of them before the next one "
                    "begins; default: the memory of one stage");
  command->add_option("--kept-texts", a->kept_texts, "folder of what was made of the prompts")->group("");
  command->add_flag("--later-stage", a->is_later_stage, "of a cascade")->group("");
  command->add_option("--condition-of-all", a->condition_of_all, "what a cascade's other stages take, too")->group("");
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
