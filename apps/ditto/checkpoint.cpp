// ditto checkpoint inspect|verify|import|export
#include <CLI/CLI.hpp>

#include <iostream>

#include <torch/types.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/checkpoint/foreign.h"
#include "core/checkpoint/peft.h"
#include "core/network/finite.h"
#include "core/network/foreign_model.h"
#include "core/network/names.h"
#include "core/network/saved_model.h"
#include "core/report/run_lock.h"
#include "core/report/streams.h"
#include "core/train/assembly.h"
#include "core/train/launch.h"
#include "core/train/record.h"

namespace ditto {

namespace {

struct Arguments {
  std::string path, out, format, recipe, weights, network;
  std::vector<std::string> sets;
  bool json = false, merge = false;
};

Recipe on_cpu(Recipe recipe) {
  recipe.run.device = "cpu";
  return recipe;
}

// The model of a recipe, on one rank, uncut, in the host's memory, without its weights.
struct Made {
  Made(Recipe recipe_, const SavedShapes& shapes, Registry& registry)
      : recipe(on_cpu(std::move(recipe_))), mesh(RankInfo{}, {}, timeout(recipe)) {
    AssemblyParts parts;
    parts.saved = shapes;
    parts.weights = RunningModel::Weights::room;
    parts.frozen = FrozenWeights::none;
    registry.try_out(plugins_of(recipe));
    assembly.emplace(recipe, registry, mesh, parts, Log{});
  }
  Recipe recipe;
  GlooMesh mesh;
  std::optional<Assembly> assembly;
};

Registry registry_of(const CommandLine& line) { return Registry(plugin_folders(line.plugin_path), try_new_plugins); }

void inspect(const Arguments& a) {
  const auto info = checkpoint::describe(*checkpoint::resolve(a.path).path);
  std::cout << (a.json ? checkpoint::to_json(info) : checkpoint::to_text(info)) << '\n';
}

void verify(const Arguments& a, int& exit_code) {
  const auto wrong = checkpoint::verify(a.path);
  for (const auto& line : wrong) std::cout << shown(line, kSentenceShown) << '\n';
  if (wrong.empty()) std::cout << shown(a.path) << ": every byte is as it was saved\n";
  if (!wrong.empty()) exit_code = Error::exit_code(ErrorKind::checkpoint);
}

// Frozen weights are kept in the run's precision, and written in that of those that are learned.
Recipe in_full_precision(Recipe recipe) {
  if (recipe.run.precision != "fp64") recipe.run.precision = "fp32";
  return recipe;
}

// Whether what is written is an adapter alone.
bool writes_adapter(const Arguments& a, const RunningModel& model) {
  if (a.merge && !model.adapter)
    throw Error(ErrorKind::config, "--merge", a.path + " has no adapter",
                "leave it out, or name one: --set adapter.weights=FOLDER");
  const bool alone = model.adapter && !a.merge;
  if (!alone && a.format.empty())
    throw Error(ErrorKind::config, "--format", "is not given",
                "say how the weights are to be named: facebook-dit, diffusers");
  return alone;
}

void export_to(const Arguments& a, const CommandLine& line) {
  expect_one_rank("ditto checkpoint export");
  auto saved = open_saved(a.path, a.sets, a.network);
  saved.recipe = in_full_precision(std::move(saved.recipe));
  auto registry = registry_of(line);
  Made made(saved.recipe, saved.shapes, registry);
  const bool ema = a.weights != "weights" && saved.has_ema;
  made.assembly->networks->load(saved, ema ? "ema" : "weights");
  auto& main = *made.assembly->main;
  const bool adapter_alone = writes_adapter(a, main);
  auto notes = export_notes(made.recipe, made.assembly->networks->shapes(), a.format);
  notes["ditto.run"] = saved.recipe.run.name;
  notes["ditto.step"] = std::to_string(saved.step);
  notes["ditto.weights"] = ema ? "ema" : "weights";
  if (adapter_alone) {
    checkpoint::export_peft(*main.model, a.format, main.layout, main.adapter->alpha, a.out, notes);
    std::cout << "adapter of step " << saved.step << (a.format.empty() ? "" : " as " + a.format) << ": " << shown(a.out)
              << '\n';
    return;
  }
  if (a.merge) merge_adapter(*main.model);
  const auto& scheduler = made.assembly->networks->scheduler;
  const auto schedule = scheduler ? scheduler->foreign_config(a.format) : ForeignConfig{};
  checkpoint::export_weights(*main.model, a.format, a.out, notes, schedule);
  std::cout << (ema ? "average weights" : "weights") << " of step " << saved.step << (a.merge ? ", adapter merged" : "")
            << " as " << a.format << ": " << shown(a.out) << '\n';
  if (schedule.empty() && !a.out.ends_with(".safetensors"))
    std::cout << "no scheduler_config.json: " << a.format << " has no schedule that is this recipe's\n";
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

void import_from(const Arguments& a, const CommandLine& line) {
  expect_one_rank("ditto checkpoint import");
  if (checkpoint::is_peft(a.path))
    throw Error(ErrorKind::config, a.path, "is an adapter of peft's, and a checkpoint would be of a whole model",
                "name it where it is used: adapter.weights in a recipe, or `ditto sample RUN --adapter FOLDER`");
  std::optional<checkpoint::Which> which;
  if (a.weights == "ema") which = checkpoint::Which::ema;
  if (a.weights == "weights") which = checkpoint::Which::weights;
  auto registry = registry_of(line);
  std::optional<Recipe> recipe;
  if (!a.recipe.empty()) recipe = Recipe::read(a.recipe, a.sets);
  auto foreign = open_foreign(a.path, a.format, which, std::move(recipe), a.sets, registry);
  // Nobody knows more of the data, and an encoder that is there to decode asks for no more.
  if (!foreign.recipe.encoders.empty() && foreign.shapes.data.empty()) {
    const auto dims = foreign.shapes.model.shape(names::kInput).size();
    foreign.shapes.data = {{names::kImage, torch::kFloat, std::vector<int64_t>(dims, -1), ""}};
  }
  Made made(std::move(foreign.recipe), foreign.shapes, registry);
  refuse_other_channels(*made.assembly, a.path);
  const auto set = checkpoint::import_weights(*made.assembly->main->model, a.format, a.path, which);
  require_finite(made.assembly->main->layout, a.path);
  auto extra = machine_record();
  extra["shapes"] = to_text(made.assembly->networks->shapes());
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
  auto a = std::make_shared<Arguments>();

  auto* command = add(*group, "inspect", "Say what a checkpoint holds", "runs/digits");
  command->add_option("path", a->path, "a run's folder, or a checkpoint")->required();
  command->add_flag("--json", a->json, "for programs");
  command->callback([a] { inspect(*a); });

  command = add(*group, "verify", "Read every byte of a checkpoint and compare checksums",
                "runs/digits/checkpoints/step_00000600");
  command->add_option("path", a->path, "a checkpoint")->required();
  command->callback([a, &line] { verify(*a, line.exit_code); });

  command = add(*group, "export", "Write the weights as another project names them",
                "runs/digits --format diffusers --out digits-diffusers");
  command->add_option("path", a->path, "a run's folder, or a checkpoint")->required();
  command->add_option("--format", a->format, "facebook-dit, diffusers; of an adapter default: the model's own names");
  command->add_flag("--merge", a->merge,
                    "write an adapter's run as a whole model; default: its adapter alone, for peft");
  command
      ->add_option("--out", a->out,
                   "safetensors file; or, for diffusers, a folder that its from_pretrained reads; of an adapter a "
                   "folder that peft reads")
      ->required();
  command->add_option("--weights", a->weights, "ema or weights; default: ema if there is one")
      ->check(CLI::IsMember({"ema", "weights"}));
  command->add_option("--network", a->network, "another network that trained in the run, [network.NAME]");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of its recipe")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->callback([a, &line] { export_to(*a, line); });

  command = add(*group, "import",
                "Make a checkpoint from another project's weights (.safetensors, or .pt of which nothing is run)",
                "DiT.pt --format facebook-dit --recipe my.toml --out imported");
  command->add_option("path", a->path, "the file, or a folder of diffusers")->required();
  command->add_option("--format", a->format, "facebook-dit, diffusers")->required();
  command->add_option(
      "--recipe", a->recipe,
      "a recipe; of its [model] only what the file does not say is needed. Without it a file that Ditto "
      "exported says all, for others say --set model.plugin=NAME");
  command->add_option("--out", a->out, "folder of the checkpoint")->required();
  command->add_option("--weights", a->weights, "which set of a .pt: ema or weights; default: ema if there is one")
      ->check(CLI::IsMember({"ema", "weights"}));
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the recipe")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->callback([a, &line] { import_from(*a, line); });
}

}  // namespace ditto
