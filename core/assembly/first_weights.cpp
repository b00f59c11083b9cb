#include "core/assembly/first_weights.h"

#include <filesystem>

#include "core/assembly/fit.h"
#include "core/assembly/resume.h"
#include "core/config/differences.h"
#include "core/network/adapter.h"
#include "core/network/finite.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

void refuse_adapter_without_base(const Recipe& recipe, const checkpoint::Fit& fit) {
  const auto& run = recipe.run;
  if (run.init_from.empty())
    throw Error(ErrorKind::config, "run.init_from", "is not given, and [adapter] is learned on the weights of a model",
                "name its run or checkpoint; another project's weights become one by `ditto checkpoint import`");
  if (!(fit == checkpoint::Fit{}))
    throw Error(ErrorKind::config, "run.init_from",
                "is to be of a model that is not quite this one, and with [adapter] what is not taken from it would be "
                "saved nowhere",
                "leave run.init_missing, init_extra and init_other_shape out");
}

// Where run.init_from lies; empty: none is given.
std::string place_of(const Recipe& recipe) {
  const auto& from = recipe.run.init_from;
  return from.empty() ? from : (fs::path(recipe.run.folder) / from).string();
}

void start_adapter(Assembly& assembly, const FirstWeightsCall& call) {
  const auto& adapter = *assembly.main->adapter;
  if (adapter.weights.empty()) return;
  call.expect_same("adapter to start from", {{"adapter", fingerprint_of_adapter(adapter.weights)}});
  load_adapter(adapter, *assembly.main->model, assembly.main->layout, checkpoint::Which::ema_or_weights);
  call.say("adapter from " + adapter.weights);
}

}  // namespace

checkpoint::Fit check_first_weights(const Assembly& assembly) {
  const auto fit = fit_of(assembly.recipe, *assembly.main->model);
  if (assembly.main->adapter) refuse_adapter_without_base(assembly.recipe, fit);
  return fit;
}

void require_first_weights(const Recipe& recipe) {
  const auto place = place_of(recipe);
  if (place.empty() || fs::exists(fs::symlink_status(place)))
    return;  // a hint may lead nowhere, and its folder be whole
  throw Error(ErrorKind::checkpoint, place, "there is no such folder",
              "give run.init_from the path of a run, or of one of its checkpoints");
}

std::map<std::string, std::string> read_first_weights(Assembly& assembly, const FirstWeightsCall& call) {
  const auto& recipe = assembly.recipe;
  auto& main = *assembly.main;
  const auto fit = check_first_weights(assembly);
  const auto place = place_of(recipe);
  if (place.empty()) return {};
  const auto start = checkpoint::resolve(place, call.mesh.world());
  for (const auto& line : start.skipped) call.say("warning: " + line);
  const auto& found = *start.path;
  call.expect_same("weights to start from", facts_of_checkpoint(found));
  const auto info = checkpoint::describe(found);
  if (adapter_base(info.extra))
    throw Error(ErrorKind::checkpoint, found, "is an adapter alone, and a run starts from a whole model",
                "name its base in run.init_from and this in adapter.weights, or merge it: `ditto checkpoint export "
                "--merge`, and `ditto checkpoint import`");
  if (assembly.train_data)
    for (const auto& line : compare_class_names(info.extra, found, assembly.train_data->makes(), call.allowed))
      call.say(line);
  const auto which = recipe.run.init_weights == "ema" ? checkpoint::Which::ema_or_weights : checkpoint::Which::weights;
  auto base = main.layout;
  if (main.adapter)  // it is learned here, and so is what an objective owns
    std::erase_if(base.entries, [](const LayoutEntry& entry) { return entry.trains; });
  auto asked = fit;
  asked.of_a_start = !main.adapter;  // with one they are refused
  const auto fitted = checkpoint::load_weights(found, base, which, asked);
  if (main.adapter) start_adapter(assembly, call);
  require_finite(main.layout, found);
  main.parameters_changed();
  call.say("weights from " + found);
  const auto theirs = formats::parse_toml(info.recipe_toml, "the checkpoint's recipe");
  if (const auto other = other_meaning(theirs, recipe.resolved()); !other.empty())
    call.say("they were learned with " + other);
  if (!(fit == checkpoint::Fit{}))
    for (const auto& line : fit_report(fitted, fit, found, call.mesh.world())) call.say(line);
  if (!main.adapter) return {};
  return notes_of(adapter_base(found, recipe.run.init_weights));
}

}  // namespace ditto
