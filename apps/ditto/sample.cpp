// ditto sample RUN|CHECKPOINT --out DIR
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <torch/torch.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/interrupt.h"
#include "apps/ditto/numbers.h"
#include "core/checkpoint/tensor_file.h"
#include "core/dist/local_ranks.h"
#include "core/formats/file.h"
#include "core/formats/json.h"
#include "core/formats/output_folder.h"
#include "core/report/grid.h"
#include "core/report/progress.h"
#include "core/sample/generate.h"
#include "core/network/saved_model.h"
#include "core/train/assembly.h"
#include "core/train/rank.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

struct Arguments {
  std::string from, out, classes, seeds = "0-15", sampler, noise, save_latents, weights = "ema", progress = "auto";
  std::vector<std::string> sets;
  int64_t batch = 16;
  std::optional<int64_t> steps;
  std::optional<double> guidance;
  std::string guidance_channels;
  int local_ranks = 0;
};

// The command line's words as the recipe's.
std::vector<std::string> sets_of(const Arguments& a) {
  std::vector<std::string> sets;
  if (!a.sampler.empty()) sets.push_back("sampler.plugin=" + a.sampler);
  if (a.steps) sets.push_back(fmt::format("sampler.steps={}", *a.steps));
  if (a.guidance) sets.push_back(fmt::format("guidance.scale={}", to_text(OptionValue(*a.guidance))));
  if (!a.guidance_channels.empty()) sets.push_back("guidance.channels=\"" + a.guidance_channels + "\"");
  sets.insert(sets.end(), a.sets.begin(), a.sets.end());
  return sets;
}

struct SampleRequest {
  int64_t seed = 0, label = 0;
};

std::vector<SampleRequest> requests_of(const Arguments& a, const ModelNeeds& needs) {
  struct { int64_t classes; } spec{needs.values("label")};
  auto classes = a.classes.empty() ? std::vector<int64_t>{} : number_list(a.classes, "--classes");
  if (!classes.empty() && spec.classes == 0)
    throw Error(ErrorKind::config, "--classes " + a.classes, "this model has no classes", "leave --classes out");
  for (const int64_t label : classes)
    if (label >= spec.classes)
      throw Error(ErrorKind::config, "--classes " + a.classes, fmt::format("{} is not a class of this model", label),
                  fmt::format("its classes are 0 to {}", spec.classes - 1));
  if (classes.empty())
    for (int64_t i = 0; i < std::max<int64_t>(1, spec.classes); ++i) classes.push_back(i);
  std::vector<SampleRequest> requests;
  for (const int64_t seed : number_list(a.seeds, "--seeds"))
    requests.push_back({seed, classes[requests.size() % classes.size()]});
  return requests;
}

torch::Tensor read_noise(const std::string& path, size_t count, const ModelNeeds& needs) {
  const auto tensors = read_tensors(path);
  const auto it = tensors.find("noise");
  if (it == tensors.end())
    throw Error(ErrorKind::data, path, "has no tensor \"noise\"", "name it so, with shape [n, C, H, W]");
  auto expected = needs.shape("x");
  expected.insert(expected.begin(), static_cast<int64_t>(count));
  if (it->second.sizes() != at::IntArrayRef(expected))
    throw Error(ErrorKind::data, path, fmt::format("noise is {}", to_text(OptionValue(it->second.sizes().vec()))),
                fmt::format("expected {}: one start for each seed", to_text(OptionValue(expected))));
  return it->second;
}

nlohmann::json settings_of(const SavedModel& saved, const Arguments& a, const SampleRequest& request) {
  nlohmann::json settings{{"seed", request.seed},
                          {"checkpoint", fs::path(saved.path).filename().string()},
                          {"run", saved.recipe.run.name},
                          {"step", saved.step},
                          {"weights", saved.has_ema ? a.weights : "weights"},
                          {"sampler", saved.recipe.sampler.plugin},
                          {"steps", saved.recipe.sampler_steps},
                          {"precision", saved.recipe.run.precision},
                          {"batch", a.batch}};
  if (saved.shapes.model.values("label") > 0) settings["class"] = request.label;
  if (!a.noise.empty()) settings["noise"] = fs::path(a.noise).filename().string();
  return settings;
}

// 000003.png, and 000003-1.png, 000003-2.png, … where a seed is asked for again: a file for every picture.
std::vector<std::string> file_names(const std::vector<SampleRequest>& requests) {
  std::map<int64_t, int64_t> made;
  std::vector<std::string> names;
  for (const auto& request : requests) {
    const int64_t before = made[request.seed]++;
    names.push_back(fmt::format("{:06}{}.png", request.seed, before == 0 ? "" : fmt::format("-{}", before)));
  }
  return names;
}

void write_pictures(const std::vector<formats::Picture>& pictures, const std::vector<SampleRequest>& requests,
                    const SavedModel& saved, const Arguments& a) {
  std::string list;
  const auto names = file_names(requests);
  for (size_t i = 0; i < pictures.size(); ++i) {
    auto settings = settings_of(saved, a, requests[i]);
    formats::write_png((fs::path(a.out) / names[i]).string(), pictures[i],
                       report::settings_text(formats::ascii_json(settings, -1)));
    settings["file"] = names[i];
    list += formats::ascii_json(settings, -1) + '\n';
  }
  report::SheetOptions sheet;
  sheet.columns = saved.shapes.model.values("label") > 0 && saved.shapes.model.values("label") <= 20
                      ? static_cast<int>(saved.shapes.model.values("label"))
                      : 0;
  formats::write_png((fs::path(a.out) / "grid.png").string(), report::make_sheet(pictures, sheet));
  formats::write_file((fs::path(a.out) / "samples.jsonl").string(), std::as_bytes(std::span(list)), ErrorKind::data);
}

// Before any picture is made, so that no work is lost.
void prepare_outputs(const Arguments& a, const std::string& no_pictures) {
  if (!a.save_latents.empty()) {
    std::error_code ignored;
    if (fs::is_directory(a.save_latents, ignored))
      throw Error(ErrorKind::config, "--save-latents " + a.save_latents, "is a folder", "name a file");
    const auto folder = fs::path(a.save_latents).parent_path();
    formats::require_writable(folder.empty() ? "." : folder.string(), "--save-latents");
  }
  if (no_pictures.empty()) formats::make_output_folder(a.out, "--out");
}

// The samples themselves first, which took the work: pictures can be made of them again.
void write_samples(const torch::Tensor& latents, const std::vector<SampleRequest>& requests, Assembly& assembly,
                   const std::string& no_pictures, const SavedModel& saved, const Arguments& a) {
  if (!a.save_latents.empty()) {
    write_tensors(a.save_latents, {{"latents", latents.cpu()}});
    std::cout << "latents of " << requests.size() << " samples: " << shown(a.save_latents) << '\n';
  }
  if (!no_pictures.empty()) {
    std::cout << "no pictures: the model " << no_pictures << '\n';
    return;
  }
  write_pictures(report::to_pictures(assembly.networks->decode(latents).cpu()), requests, saved, a);
  std::cout << requests.size() << " pictures, and all of them in " << shown((fs::path(a.out) / "grid.png").string())
            << '\n';
}

void sample(Rank& rank, const Arguments& a, const CommandLine& line) {
  auto saved = open_saved(a.from, sets_of(a));
  const auto requests = requests_of(a, saved.shapes.model);
  rank.open(saved.recipe, line.plugin_path);
  rank.meet(saved.recipe);
  const auto& mesh = rank.mesh();
  AssemblyParts parts;
  parts.sampler = true;
  parts.latents = !a.save_latents.empty();
  parts.saved = saved.shapes;
  parts.weights = RunningModel::Weights::room;
  Assembly assembly(saved.recipe, rank.registry(), mesh, parts, {});
  const auto no_pictures = parts.latents ? assembly.networks->no_pictures() : "";
  load_weights(saved, a.weights, *assembly.main);

  GenerateOptions options;
  options.steps = saved.recipe.sampler_steps;
  options.batch = a.batch;
  options.watch = &rank.watch();
  if (!a.noise.empty()) options.noise = read_noise(a.noise, requests.size(), saved.shapes.model);
  std::unique_ptr<report::Progress> progress;
  if (mesh.rank() == 0) {
    prepare_outputs(a, no_pictures);
    report::ProgressOptions look;
    look.style = report::progress_style(a.progress);
    look.unit = "picture";
    progress = std::make_unique<report::Progress>(static_cast<int64_t>(requests.size()), look);
    options.progress = [&](int64_t done, int64_t) {
      report::ProgressState state;
      state.done = std::min<int64_t>(done * mesh.data_ranks(), static_cast<int64_t>(requests.size()));
      progress->update(state);
    };
  }
  SampleRequests all;
  for (const auto& request : requests) all.seeds.push_back(request.seed);
  if (saved.shapes.model.values("label") > 0) {
    std::vector<int64_t> labels;
    for (const auto& request : requests) labels.push_back(request.label);
    all.conditions["label"] = torch::tensor(labels, torch::kLong);
  }
  const auto latents = generate(*assembly.networks, *assembly.sampler, *assembly.guidance, all, options);
  if (mesh.rank() != 0) return;
  progress->finish();
  rank.watch().begin("writing samples");
  write_samples(latents, requests, assembly, no_pictures, saved, a);
}

int sample(const Arguments& a, const CommandLine& line) {
  const auto info = a.local_ranks > 0 ? RankInfo{} : rank_info();
  if (info.rank == 0 && info.launcher != "local ranks")
    say_when_interrupted("SIGINT: ends at once; pictures that are not written yet are lost\n");
  if (a.local_ranks > 0) return run_local_ranks({a.local_ranks, without_local_ranks(line.arguments)});
  Rank rank(info);
  return rank.run([&] {
    sample(rank, a, line);
    return 0;
  });
}

}  // namespace

void add_sample_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("sample", "Make pictures from a trained model");
  auto a = std::make_shared<Arguments>();
  command->add_option("from", a->from, "a run's folder, or a checkpoint")->required();
  command->add_option("--out", a->out, "folder for the pictures")->required();
  command->add_option("--classes", a->classes,
                      "classes, as 0,3,7 or 0-9: the i-th picture is of class i modulo their count; default: all");
  command
      ->add_option("--seeds", a->seeds,
                   "seeds, as 5,7 or 0-99: one picture each, 000005.png; a seed again: 000005-1.png")
      ->capture_default_str();
  command->add_option("--sampler", a->sampler, "another sampler than the recipe's");
  command->add_option("--steps", a->steps, "steps from noise to data")->check(CLI::Range(1, 1'000'000));
  command->add_option("--guidance", a->guidance, "guidance scale; 1: none")->check(CLI::Range(0.0, 1e6));
  command->add_option("--guidance-channels", a->guidance_channels, "all, or 3 as in DiT's published samples")
      ->check(CLI::IsMember({"all", "3"}));
  command->add_option("--batch", a->batch, "pictures made at once; equal batches give equal bits")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--weights", a->weights, "ema (if there is one) or weights")
      ->check(CLI::IsMember({"ema", "weights"}))
      ->capture_default_str();
  command->add_option("--noise", a->noise,
                      "safetensors file with a tensor \"noise\" [n, C, H, W] to start from, one a picture");
  command->add_option("--save-latents", a->save_latents,
                      "write the samples before decoding to this safetensors file, as \"latents\"; all that is written "
                      "where the recipe has no decoder for them");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the run's recipe")->allow_extra_args(false);
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  add_plugin_path(*command, line);
  command->add_option("--progress", a->progress, "auto, bar, plain or none")->capture_default_str();
  command->footer("Example: ditto sample runs/digits --out samples --classes 0-9 --seeds 0-99 --guidance 2");
  command->callback([a, &line] { line.exit_code = sample(*a, line); });
}

}  // namespace ditto
