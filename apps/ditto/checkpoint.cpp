// ditto checkpoint inspect|verify|import|export
#include <CLI/CLI.hpp>

#include <array>
#include <charconv>
#include <filesystem>
#include <iostream>

#include <torch/types.h>

#include <ditto/text.h>

#include "apps/ditto/cascade.h"
#include "apps/ditto/commands.h"
#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/assembly/run_notes.h"
#include "core/console/streams.h"
#include "core/data/names.h"
#include "core/exchange/foreign.h"
#include "core/exchange/foreign_folder.h"
#include "core/exchange/model_card.h"
#include "core/exchange/peft.h"
#include "core/formats/output_folder.h"
#include "core/network/finite.h"
#include "core/network/foreign_model.h"
#include "core/network/saved_model.h"
#include "core/plugin/trial.h"
#include "core/process/launch.h"
#include "core/run_folder/run_lock.h"

namespace ditto {

namespace {

struct CheckpointArguments {
  std::string path, out, format, recipe, weights, network, dtype, shard_size, license;
  std::vector<std::string> sets;
  bool json = false, merge = false, optimizer = false;
  bool of_stage = false;  // `out` is a folder, or lacks the end of a file's name where the format is one file
};

// Before a format's name, in a checkpoint's notes: the text of the configuration that its model was imported with.
constexpr const char* kConfigNote = "config.";

Recipe on_cpu(Recipe recipe) {
  recipe.run.device = "cpu";
  return recipe;
}

// The model of a recipe, on one rank, uncut, in the host's memory, without its weights.
AssemblyParts model_alone(const SavedShapes& shapes) {
  AssemblyParts parts;
  parts.saved = shapes;
  parts.weights = RunningModel::Weights::room;
  parts.frozen = FrozenWeights::none;
  return parts;
}

struct Made {
  Made(Recipe recipe_, const AssemblyParts& parts, Registry& registry)
      : recipe(on_cpu(std::move(recipe_))), mesh(RankInfo{}, {}, timeout(recipe)) {
    registry.try_out(plugins_of(recipe));
    assembly.emplace(recipe, registry, mesh, parts, Log{});
  }
  Recipe recipe;
  GlooMesh mesh;
  std::optional<Assembly> assembly;
};

Registry registry_of(const CommandLine& line) { return Registry(plugin_folders(line.plugin_path), try_new_plugins); }

void inspect(const CheckpointArguments& a) {
  const auto found = checkpoint::resolve(a.path);
  for (const auto& line : found.skipped) report::tell("warning: " + line);
  const auto info = checkpoint::describe(*found.path);
  std::cout << (a.json ? checkpoint::to_json(info) : checkpoint::to_text(info)) << '\n';
}

void verify(const CheckpointArguments& a, int& exit_code) {
  const auto path = checkpoint::newest(a.path);
  const auto wrong = checkpoint::verify(path);
  for (const auto& line : wrong) std::cout << shown(line, kSentenceShown) << '\n';
  if (wrong.empty()) std::cout << shown(path) << ": every byte is as it was saved\n";
  if (!wrong.empty()) exit_code = Error::exit_code(ErrorKind::checkpoint);
}

// Frozen weights are kept in the run's precision, and written in that of those that are learned.
Recipe in_full_precision(Recipe recipe) {
  if (recipe.run.precision != "fp64") recipe.run.precision = "fp32";
  return recipe;
}

// Whether what is written is an adapter alone.
bool writes_adapter(const CheckpointArguments& a, const RunningModel& model) {
  if (a.merge && !model.adapter)
    throw Error(ErrorKind::config, "--merge", a.path + " has no adapter",
                "leave it out, or name one: --set adapter.weights=FOLDER");
  const bool alone = model.adapter && !a.merge;
  if (!alone && a.format.empty())
    throw Error(ErrorKind::config, "--format", "is not given",
                "say how the weights are to be named: diffusers, facebook-dit, … (as far as the model has it)");
  return alone;
}

// "5GB" as programs of these formats write it.
uint64_t bytes_of(const std::string& text) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 7> kUnits{{{"KiB", uint64_t{1} << 10},
                                                                                {"MiB", uint64_t{1} << 20},
                                                                                {"GiB", uint64_t{1} << 30},
                                                                                {"KB", 1'000},
                                                                                {"MB", 1'000'000},
                                                                                {"GB", 1'000'000'000},
                                                                                {"", 1}}};
  for (const auto& [unit, bytes] : kUnits) {
    if (!text.ends_with(unit)) continue;
    uint64_t number = 0;
    const auto* const last = text.data() + text.size() - unit.size();
    const auto [end, code] = std::from_chars(text.data(), last, number);
    if (code == std::errc() && end == last && number >= 1 && number <= (uint64_t{1} << 62) / bytes)
      return number * bytes;
  }
  throw Error(ErrorKind::config, "--shard-size " + text, "is no number of bytes", "write 500MB, 5GB or 2GiB");
}

checkpoint::ExportForm form_of(const CheckpointArguments& a, const SavedModel& saved) {
  checkpoint::ExportForm form;
  if (a.dtype == "fp32") form.dtype = torch::kFloat;
  if (a.dtype == "bf16") form.dtype = torch::kBFloat16;
  if (a.dtype == "fp16") form.dtype = torch::kHalf;
  if (!a.shard_size.empty()) form.most_bytes = bytes_of(a.shard_size);
  const auto kept = saved.notes.find(kConfigNote + a.format);
  if (kept != saved.notes.end() && a.network.empty()) form.kept_config = kept->second;
  return form;
}

// `written`: what of the layout is exported.
report::ModelCard card_of(const CheckpointArguments& a, const SavedModel& saved, const Made& made,
                          const std::string& weights, const Layout& written) {
  report::ModelCard card;
  card.run = saved.recipe.run.name;
  card.plugin = made.recipe.model.plugin;
  card.format = a.format;
  if (a.format == "diffusers" && !a.out.ends_with(".safetensors")) card.library = a.format;
  card.weights = weights;
  for (const auto& entry : written.entries) card.parameters += c10::multiply_integers(entry.full_shape);
  card.step = saved.step;
  card.samples = saved.samples;
  if (const auto source = saved.notes.find("source"); source != saved.notes.end()) card.data = source->second;
  card.license = a.license;
  card.recipe_toml = formats::render_toml(made.recipe.resolved());
  card.picture = report::sheet_of(saved.path, saved.step);
  return card;
}

void put_card(const report::ModelCard& card, const std::string& path) {
  if (!report::write_card(card, path)) std::cout << shown(path) << " is there and stays: no card of this model\n";
}

void export_run(CheckpointArguments a, const CommandLine& line) {
  auto saved = open_saved(a.path, a.sets, a.network);
  saved.recipe = in_full_precision(std::move(saved.recipe));
  auto registry = registry_of(line);
  Made made(saved.recipe, model_alone(saved.shapes), registry);
  const bool ema = a.weights != "weights" && saved.has_ema;
  made.assembly->networks->load(saved, ema ? "ema" : "weights");
  auto& main = *made.assembly->main;
  const bool adapter_alone = writes_adapter(a, main);
  if (a.of_stage && !adapter_alone && main.model->foreign(a.format).config.empty()) a.out += ".safetensors";
  auto notes = export_notes(made.recipe, made.assembly->networks->shapes(), a.format);
  notes["ditto.run"] = saved.recipe.run.name;
  notes["ditto.step"] = std::to_string(saved.step);
  notes["ditto.weights"] = ema ? "ema" : "weights";
  const auto written = !main.adapter ? main.layout : adapter_alone ? adapter_of(main.layout) : base_of(main.layout);
  auto card = card_of(a, saved, made, ema ? "ema" : "weights", written);
  if (adapter_alone) {
    if (!a.dtype.empty() || !a.shard_size.empty())
      throw Error(ErrorKind::config, a.dtype.empty() ? "--shard-size" : "--dtype",
                  "is for whole models, and this is an adapter alone, which is small", "leave it out, or add --merge");
    checkpoint::export_peft(*main.model, a.format, main.layout, main.adapter->alpha, a.out, notes);
    card.library = "peft";
    put_card(card, a.out + "/README.md");
    std::cout << "adapter of step " << saved.step << (a.format.empty() ? "" : " as " + a.format) << ": " << shown(a.out)
              << '\n';
    return;
  }
  if (a.merge) merge_adapter(*main.model);
  const auto& scheduler = made.assembly->networks->scheduler;
  const auto schedule = scheduler ? scheduler->foreign_config(a.format) : ForeignConfig{};
  put_card(card, checkpoint::export_weights(*main.model, a.format, a.out, notes, schedule, form_of(a, saved)));
  std::cout << (ema ? "average weights" : "weights") << " of step " << saved.step << (a.merge ? ", adapter merged" : "")
            << " as " << a.format << ": " << shown(a.out) << '\n';
  if (schedule.empty() && !a.out.ends_with(".safetensors"))
    std::cout << "no scheduler_config.json: " << a.format << " has no schedule that is this recipe's\n";
}

// Each stage's beside the others', once all of them have something to write.
void export_stages(const CheckpointArguments& a, const CommandLine& line) {
  const auto cascade = read_cascade(a.path, a.sets);
  if (a.out.ends_with(".safetensors"))
    throw Error(ErrorKind::config, "--out " + a.out, "is a file, and a cascade is exported as one for each stage",
                "name a folder for them");
  for (size_t i = 0; i < cascade.stages.size(); ++i) checkpoint_of_stage(cascade, i);
  formats::make_output_folder(a.out, "--out");
  for_each_stage(cascade, {}, [&](const CascadeStage& stage) {
    auto one = a;
    one.path = stage.folder;
    one.sets = stage.sets;
    one.out = (std::filesystem::path(a.out) / stage.name).string();
    one.of_stage = true;
    export_run(one, line);
    return 0;
  });
}

void export_to(const CheckpointArguments& a, const CommandLine& line) {
  expect_one_rank("ditto checkpoint export");
  is_cascade(a.path) ? export_stages(a, line) : export_run(a, line);
}

// A schedule whose prediction the weights are not of would only be noticed by what it samples.
void refuse_other_channels(const Assembly& assembly, const std::string& file) {
  const auto& networks = *assembly.networks;
  if (!networks.scheduler) return;
  const auto found = networks.main->setting.needs.out_channels;
  const auto expected = networks.scheduler->out_channels(networks.shape_of_one().at(0));
  if (expected != found)
    throw Error(ErrorKind::config, assembly.recipe.scheduler.where,
                "scheduler \"" + assembly.recipe.scheduler.plugin + "\" learns " + std::to_string(expected) +
                    " channels, and the model of " + file + " has " + std::to_string(found),
                "choose the schedule that it was trained with (or its variance)");
}

// What a training of this recipe would have saved after the steps that theirs made: `train --resume` goes on from it.
void import_training(const CheckpointArguments& a, Recipe recipe, Registry& registry) {
  if (recipe.adapter)
    throw Error(ErrorKind::config, "--optimizer", "is of a whole model's training, and the recipe has an [adapter]",
                "leave one of them out");
  AssemblyParts parts;
  parts.data = parts.objective = true;
  Made made(std::move(recipe), parts, registry);
  auto& assembly = *made.assembly;
  auto& networks = *assembly.networks;
  const auto optimizer = assembly.make_optimizer();
  Ema ema(networks.learned(), made.recipe.ema);
  checkpoint::TrainState state;
  state.layout = &networks.learned();
  state.ema = ema.enabled() ? &ema.tensors() : nullptr;
  state.optimizer = optimizer.get();
  checkpoint::import_training(*assembly.main->model, a.format, a.path, state);
  if (const auto bad = not_finite(state, made.mesh.world()); !bad.empty())
    throw Error(ErrorKind::checkpoint, a.path, bad + " holds numbers that are not finite", "use another file");
  state.samples = state.step * made.recipe.run.batch;
  state.seed = static_cast<uint64_t>(made.recipe.run.seed);
  state.extra = machine_record();
  state.extra["shapes"] = to_text(networks.shapes());
  state.extra["updates"] = std::to_string(state.step);
  state.extra["skipped_in_a_row"] = "0";
  state.extra["source"] = assembly.train_data->fingerprint();
  for (const auto& [name, fingerprint] : networks.fingerprints()) state.extra["network." + name] = fingerprint;
  for (const auto& encoder : networks.encoders)
    if (!encoder->fingerprint().empty()) state.extra[encoder->section] = encoder->fingerprint();
  state.recipe_toml = formats::render_toml(made.recipe.resolved());
  const auto lock = report::lock_run_around(a.out);
  checkpoint::save_state(a.out, state, [](const std::string& line) { report::tell("warning: " + line); });
  std::cout << shown(a.path) << " (model, ema, opt) after " << state.step << " steps as a checkpoint: " << shown(a.out)
            << "\n`ditto train RECIPE --resume " << shown(a.out)
            << "` goes on from it; samples come in this recipe's order\n";
}

// For the encoders of an import, which decode, and encode prompts: nobody knows more of the data. `x`: of the model.
TensorSpecs any_data(const std::vector<int64_t>& x, const Recipe& recipe) {
  std::vector<int64_t> picture(x.size(), kOwnSide);
  picture[0] = x[0] == 1 ? 1 : 3;
  const auto size = recipe.data.options.given.find("size");  // an encoder may ask for it
  const auto* sides =
      size == recipe.data.options.given.end() ? nullptr : std::get_if<std::vector<int64_t>>(&size->second.value);
  if (sides && sides->size() + 1 == picture.size()) std::copy(sides->begin(), sides->end(), picture.begin() + 1);
  return {{names::kImage, torch::kFloat, picture, ""}, {names::kCaption, torch::kByte, {-1}, ""}};
}

void import_from(const CheckpointArguments& a, const CommandLine& line) {
  expect_one_rank("ditto checkpoint import");
  if (checkpoint::is_peft(a.path))
    throw Error(ErrorKind::config, a.path, "is an adapter of peft's, and a checkpoint would be of a whole model",
                "name it where it is used: adapter.weights in a recipe, or `ditto sample RUN --adapter FOLDER`");
  if (const auto adapter = checkpoint::adapter_in_file(a.path); !adapter.empty())
    throw Error(ErrorKind::config, a.path, "is " + adapter + ", and a checkpoint would be of a whole model",
                "merge it into its model in the program it is from, and import that");
  std::optional<checkpoint::Which> which;
  if (a.weights == "ema") which = checkpoint::Which::ema;
  if (a.weights == "weights") which = checkpoint::Which::weights;
  auto registry = registry_of(line);
  std::optional<Recipe> recipe;
  if (!a.recipe.empty()) recipe = Recipe::read(a.recipe, a.sets);
  if (a.optimizer && !recipe)
    throw Error(ErrorKind::config, "--optimizer", "needs the recipe that the training goes on with",
                "add --recipe FILE");
  auto foreign = open_foreign(a.path, a.format, which, std::move(recipe), a.sets, registry);
  if (!foreign.reading.empty()) std::cout << foreign.reading << '\n';
  for (const auto& [name, count] : foreign.others)
    std::cout << "left out: " << count << (count == 1 ? " tensor" : " tensors") << " of " << shown(name) << '\n';
  if (a.optimizer) return import_training(a, std::move(foreign.recipe), registry);
  if (!foreign.recipe.encoders.empty() && foreign.shapes.data.empty())
    foreign.shapes.data = any_data(foreign.shapes.model.shape(names::kInput), foreign.recipe);
  Made made(std::move(foreign.recipe), model_alone(foreign.shapes), registry);
  refuse_other_channels(*made.assembly, a.path);
  if (const auto& scheduler = made.assembly->networks->scheduler)
    checkpoint::require_schedule(a.path, scheduler->foreign_config(a.format));
  const auto set = checkpoint::import_weights(*made.assembly->main->model, a.format, foreign.file, which);
  require_finite(made.assembly->main->layout, a.path);
  auto extra = machine_record();
  extra["shapes"] = to_text(made.assembly->networks->shapes());
  if (!foreign.config_text.empty()) extra[kConfigNote + a.format] = foreign.config_text;
  const auto lock = report::lock_run_around(a.out);
  checkpoint::save_weights(a.out, made.assembly->main->layout, formats::render_toml(made.recipe.resolved()), extra,
                           [](const std::string& line) { report::tell("warning: " + line); });
  std::cout << shown(a.path) << (set.empty() ? "" : " (" + shown(set) + ")") << " as a checkpoint: " << shown(a.out)
            << '\n';
}

CLI::App* add(CLI::App& parent, const char* name, const char* help, const char* example) {
  auto* command = parent.add_subcommand(name, help);
  command->footer(std::string("Example: ditto checkpoint ") + name + " " + example);
  return command;
}

}  // namespace

void add_checkpoint_commands(CLI::App& app, CommandLine& line) {
  auto* group = app.add_subcommand("checkpoint", "Look at checkpoints, check them, exchange them with other projects");
  group->require_subcommand(1);
  auto a = std::make_shared<CheckpointArguments>();

  auto* command = add(*group, "inspect", "Say what a checkpoint holds", "runs/digits");
  command->add_option("path", a->path, "a run's folder, or a checkpoint")->required();
  command->add_flag("--json", a->json, "for programs");
  command->callback([a] { inspect(*a); });

  command = add(*group, "verify", "Read every byte of a checkpoint and compare checksums", "runs/digits");
  command->add_option("path", a->path, "a run's folder, whose newest is meant, or a checkpoint")->required();
  command->callback([a, &line] { verify(*a, line.exit_code); });

  command = add(*group, "export", "Write the weights as another project names them",
                "runs/digits --format diffusers --out digits-diffusers");
  command->add_option("path", a->path, "a run's folder, or a checkpoint; of a cascade all stages")->required();
  command->add_option("--format", a->format,
                      "diffusers, facebook-dit, …, as far as the model has it; of an adapter default: its own names");
  command->add_flag("--merge", a->merge,
                    "write an adapter's run as a whole model; default: its adapter alone, for peft");
  command
      ->add_option("--out", a->out,
                   "safetensors file; or, for diffusers, a folder that its from_pretrained reads; of an adapter a "
                   "folder that peft reads; of a cascade a folder, with one of these for each stage")
      ->required();
  command->add_option("--weights", a->weights, "ema or weights; default: ema if there is one")
      ->check(CLI::IsMember({"ema", "weights"}));
  command->add_option("--network", a->network, "another network that trained in the run, [network.NAME]");
  command
      ->add_option("--dtype", a->dtype, "fp32, bf16 or fp16: what numbers are rounded to; default: as they are trained")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--shard-size", a->shard_size,
                      "500MB, 5GB: several files of at most that, with an index; default: one file");
  command->add_option("--license", a->license, "of these weights, for their card: apache-2.0, cc-by-nc-4.0, …");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of its recipe")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->callback([a, &line] { export_to(*a, line); });

  command =
      add(*group, "import",
          "Make a checkpoint from another project's weights (.safetensors, or .pt and .bin of which nothing is run)",
          "DiT.pt --format facebook-dit --recipe my.toml --out imported");
  command->add_option("path", a->path, "the file, or a folder of diffusers")->required();
  command->add_option("--format", a->format, "diffusers, facebook-dit, …, as far as the model has it")->required();
  command->add_option(
      "--recipe", a->recipe,
      "a recipe; of its [model] only what the file does not say is needed. Without it a file that Ditto "
      "exported says all, for others say --set model.plugin=NAME");
  command->add_option("--out", a->out, "folder of the checkpoint")->required();
  auto* weights =
      command->add_option("--weights", a->weights, "which set of a .pt: ema or weights; default: ema if there is one")
          ->check(CLI::IsMember({"ema", "weights"}));
  command
      ->add_flag("--optimizer", a->optimizer,
                 "of a .pt of {model, ema, opt}: weights, average and AdamW's moments, for `ditto train --resume`")
      ->excludes(weights);
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the recipe")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->callback([a, &line] { import_from(*a, line); });
}

}  // namespace ditto
