#include "core/network/saved_model.h"

#include <algorithm>
#include <span>

#include <ditto/text.h>

#include "core/checkpoint/manifest.h"
#include "core/config/differences.h"
#include "core/config/include.h"
#include "core/console/streams.h"
#include "core/formats/file.h"
#include "core/network/finite.h"
#include "core/ranks/launch.h"

namespace ditto {

namespace {

using formats::Node;
using formats::Table;

Table* section_of(Table& tree, std::string_view name) {
  auto* node = tree.find(name);
  return node ? node->as<Table>() : nullptr;
}

// What was said of ranks and of folders belongs to the run that trained: a checkpoint does not say where to write, nor,
// but for the data that it was held against, where to read.
void forget_its_place(Table& tree, SavedUse use) {
  tree.erase("parallel");
  if (auto* run = section_of(tree, "run")) {
    if (use == SavedUse::sampling) run->erase("folder");
    for (const char* key : {"output", "init_from", "init_missing", "init_extra", "init_other_shape"}) run->erase(key);
  }
  if (auto* adapter = section_of(tree, "adapter"))  // its weights are the checkpoint's
    for (const char* key : {"weights", "format"}) adapter->erase(key);
}

bool trained(const Node& network) {
  const auto* trains = network.as<Table>() ? network.as<Table>()->find("trains") : nullptr;
  return trains && trains->as<bool>() && *trains->as<bool>();
}

// The weights of what trained are the checkpoint's, and no longer what it once started from.
void forget_first_weights(Table& tree) {
  if (auto* networks = section_of(tree, "network"))
    for (auto& entry : networks->entries())
      if (trained(entry.value)) entry.value.as<Table>()->erase("weights");
}

// Another network that trained, in the place of the run's model.
void take_network(Table& tree, const std::string& name, const std::string& where) {
  auto* networks = section_of(tree, "network");
  auto* network = networks ? networks->find(name) : nullptr;
  if (!network || !trained(*network))
    throw Error(ErrorKind::config, where, "no network \"" + name + "\" has trained in this run",
                "leave --network out, or name a [network.NAME] of it with trains = true");
  auto model = *network->as<Table>();
  for (const auto& key : own_keys("network." + name)) model.erase(key);
  networks->erase(name);
  tree.set("model", {std::move(model), {}});
  tree.erase("adapter");
}

// Of a run that did not validate, too.
void validate(Table& tree) {
  auto* options = section_of(tree, "validate");
  const auto* every = options ? options->find("every") : nullptr;
  if (!every || !every->as<int64_t>() || *every->as<int64_t>() < 1) tree.set_path("validate.every", {int64_t{1}, {}});
}

// What a training does with its model: a model that has learned does not depend on it.
constexpr const char* kOfTrainings[] = {"checkpoint.",
                                        "ema.",
                                        "log.",
                                        "lr_schedule.",
                                        "optimizer.",
                                        "record.",
                                        "tread.",
                                        "validate.every",
                                        "validate.grid",
                                        "run.audit",
                                        "run.batch",
                                        "run.clip_norm",
                                        "run.init_extra",
                                        "run.init_missing",
                                        "run.init_other_shape",
                                        "run.init_weights",
                                        "run.loss_scale",
                                        "run.max_skipped",
                                        "run.micro_batch",
                                        "run.non_finite",
                                        "run.output",
                                        "run.steps"};
// What it learns, and is held against.
constexpr const char* kOfLosses[] = {"batch.", "data.", "loader.", "objective.", "validate.", "run.seed"};
constexpr const char* kOfSampling[] = {"cache.", "guidance.", "sampler."};

void refuse_idle(const std::vector<std::string>& sets, SavedUse use) {
  for (const auto& set : sets)
    if (const char* why = why_idle(set, use))
      throw Error(ErrorKind::config, "--set " + shown(set), why, "leave it out");
}

// The checkpoint that `path` means. Newer ones that cannot be used are said, by the first rank.
std::string taken(const std::string& path) {
  const auto found = checkpoint::resolve(path);
  if (rank_info().rank == 0)
    for (const auto& line : found.skipped) report::tell("warning: " + line);
  return *found.path;
}

// Weights that are taken for something else than they learned to be: nothing else of a picture would show it.
void tell_other_meaning(const Table& theirs, const Recipe& recipe) {
  const auto other = other_meaning(theirs, recipe.resolved());
  if (!other.empty() && rank_info().rank == 0) report::tell("the weights were learned with " + other);
}

// Where the base lies now.
std::optional<AdapterBase> found_base(const SavedModel& saved) {
  if (!saved.prefix.empty() && saved.recipe.adapter)
    throw Error(ErrorKind::config, saved.path, "an adapter is named for another network than the run's model",
                "leave one of them out");
  if (!saved.prefix.empty()) return std::nullopt;
  auto base = adapter_base(saved.notes);
  const bool is_given = saved.recipe.adapter && !saved.recipe.adapter->weights.empty();
  const auto& place = saved.recipe.run.init_from;
  if (!base && !place.empty())
    throw Error(ErrorKind::config, "run.init_from", "is given, and " + saved.path + " holds a whole model",
                "leave it out: it says where an adapter's base lies");
  if (!base) return std::nullopt;
  if (is_given)
    throw Error(ErrorKind::config, saved.path, "is an adapter itself, and another one is named for it",
                "name a run of a whole model, or leave the other adapter out");
  if (!place.empty()) base->path = taken(place);
  require(*base, saved.path);
  return base;
}

std::string ready(const std::string& recipe_toml, const std::string& name, const std::string& network, SavedUse use) {
  auto tree = formats::parse_toml(recipe_toml, name);
  forget_its_place(tree, use);
  if (use == SavedUse::evaluation) validate(tree);
  forget_first_weights(tree);
  if (!network.empty()) take_network(tree, network, name);
  return formats::render_toml(tree);
}

}  // namespace

const char* why_idle(std::string_view option, SavedUse use) {
  const auto is_of = [&](std::span<const char* const> beginnings) {
    return std::any_of(beginnings.begin(), beginnings.end(),
                       [&](const char* beginning) { return option.starts_with(beginning); });
  };
  if (is_of(kOfTrainings) || (use == SavedUse::sampling && is_of(kOfLosses)))
    return "is of the training, and this model has learned";
  return use == SavedUse::evaluation && is_of(kOfSampling) ? "is of sampling, and nothing is sampled" : nullptr;
}

SavedModel open_saved(const std::string& path, const std::vector<std::string>& sets, const std::string& network,
                      SavedUse use) {
  refuse_idle(sets, use);
  SavedModel saved;
  if (!network.empty()) saved.prefix = checkpoint::kNetworkPrefix + network + ".";
  saved.path = taken(path);
  const auto info = checkpoint::describe(saved.path);
  const auto recipe = saved.path + "/recipe.toml";
  const auto theirs = formats::parse_toml(info.recipe_toml, recipe);
  const auto* init_from = theirs.find_path("run.init_from");
  saved.began_with_others = init_from && init_from->as<std::string>() && !init_from->as<std::string>()->empty();
  const auto own = ready(info.recipe_toml, recipe, network, use);
  saved.recipe = Recipe::saved(own, recipe, sets);
  tell_other_meaning(formats::parse_toml(own, recipe), saved.recipe);
  const auto shapes = info.extra.find("shapes");
  if (shapes == info.extra.end())
    throw Error(ErrorKind::checkpoint, saved.path, "does not say what shapes its model has",
                "it was written by something else than ditto");
  saved.shapes = saved_shapes(shapes->second, saved.path);
  const auto manifest = formats::read_file(saved.path + "/" + checkpoint::kManifestFile, ErrorKind::checkpoint);
  saved.fingerprint = checkpoint::checksum(std::as_bytes(std::span(manifest)));
  saved.step = info.step;
  saved.samples = info.samples;
  saved.has_ema = info.has_ema();
  saved.notes = info.extra;
  saved.base = found_base(saved);
  return saved;
}

namespace {

using checkpoint::Which;

Which which_of(const std::string& word) { return word == "ema" ? Which::ema_or_weights : Which::weights; }

}  // namespace

std::string fingerprint_of(const SavedModel& saved, const std::string& which) {
  return saved.fingerprint + (saved.has_ema && which_of(which) == Which::weights ? checkpoint::kNotAveraged : "");
}

void load_weights(const SavedModel& saved, const std::string& which, RunningUnits& units) {
  if (saved.base)
    throw Error(ErrorKind::checkpoint, saved.path, "is an adapter alone, and a whole model is asked for",
                "merge it: `ditto checkpoint export --merge`, and `ditto checkpoint import`");
  checkpoint::load_weights(saved.path, units.layout, which_of(which));
  require_finite(units.layout, saved.path);
  units.parameters_changed();
}

void load_weights(const SavedModel& saved, const std::string& which, RunningModel& model, const std::string& of) {
  auto named = model.layout;  // the same tensors, by their names there
  for (auto& entry : named.entries) entry.name = of + entry.name.substr(model.setting.prefix.size());
  if (!model.adapter) {
    if (saved.base && of.empty())
      throw Error(ErrorKind::checkpoint, saved.path, "is an adapter alone, and a whole model is asked for",
                  "merge it: `ditto checkpoint export --merge`, and `ditto checkpoint import`");
    checkpoint::load_weights(saved.path, named, which_of(which));
  } else {
    auto base = base_of(named), own = adapter_of(named);
    checkpoint::load_weights(saved.base ? saved.base->path : saved.path, base,
                             which_of(saved.base ? saved.base->which : which));
    if (saved.base)
      checkpoint::load_weights(saved.path, own, which_of(which));
    else
      load_adapter(*model.adapter, *model.model, named, which_of(which));
  }
  require_finite(model.layout, saved.path);
  model.parameters_changed();
}

}  // namespace ditto
