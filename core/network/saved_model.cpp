#include "core/network/saved_model.h"

#include <algorithm>

#include "core/checkpoint/manifest.h"
#include "core/formats/file.h"
#include "core/network/finite.h"

namespace ditto {

namespace {

using formats::Table;

Table* section_of(Table& tree, std::string_view name) {
  auto* node = tree.find(name);
  return node ? node->as<Table>() : nullptr;
}

// What was said of ranks and of folders belongs to the run that trained: a checkpoint does not say where to read or
// write.
void forget_its_place(Table& tree) {
  tree.erase("parallel");
  if (auto* run = section_of(tree, "run"))
    for (const char* key : {"folder", "output", "init_from", "init_missing", "init_extra", "init_other_shape"})
      run->erase(key);
}

// Earlier checkpoints have guidance as two options of [sampler]. A --set of [guidance] could not be given beside them.
void move_guidance(Table& tree) {
  auto* sampler = section_of(tree, "sampler");
  if (!sampler || tree.find("guidance")) return;
  Table guidance;
  for (const auto& [before, now] : {std::pair("guidance", "scale"), {"guidance_channels", "channels"}})
    if (const auto* node = sampler->find(before)) guidance.set(now, *node), sampler->erase(before);
  if (guidance.empty()) return;
  guidance.set("plugin", {std::string("cfg"), {}});
  tree.set("guidance", {std::move(guidance), {}});
}

// What the checkpoint says for one plugin is nothing for another that takes its place.
void drop_options_of_others(Table& tree, const std::vector<std::string>& sets) {
  constexpr std::string_view kPlugin = ".plugin=";
  for (const auto& set : sets) {
    const auto at = set.find(kPlugin);
    auto* section = at == std::string::npos ? nullptr : section_of(tree, set.substr(0, at));
    const auto* plugin = section ? section->find("plugin") : nullptr;
    if (!plugin || !plugin->as<std::string>()) continue;
    auto wanted = set.substr(at + kPlugin.size());
    std::erase(wanted, '"');
    if (wanted == *plugin->as<std::string>()) continue;
    Table rest;
    rest.set("plugin", {wanted, {}});
    if (const auto* steps = section->find("steps")) rest.set("steps", *steps);  // of [sampler], the host's
    *section = std::move(rest);
  }
}

std::string ready_for(const std::vector<std::string>& sets, const std::string& recipe_toml, const std::string& name) {
  auto tree = formats::parse_toml(recipe_toml, name);
  forget_its_place(tree);
  move_guidance(tree);
  drop_options_of_others(tree, sets);
  return formats::render_toml(tree);
}

}  // namespace

SavedModel open_saved(const std::string& path, const std::vector<std::string>& sets) {
  SavedModel saved;
  saved.path = *checkpoint::resolve(path).path;
  const auto info = checkpoint::describe(saved.path);
  saved.recipe =
      Recipe::parse(ready_for(sets, info.recipe_toml, saved.path + "/recipe.toml"), saved.path + "/recipe.toml", sets);
  const auto shapes = info.extra.find("shapes");
  if (shapes == info.extra.end())
    throw Error(ErrorKind::checkpoint, saved.path, "does not say what shapes its model has",
                "it was written by something else than ditto");
  saved.shapes = saved_shapes(shapes->second, saved.path);
  const auto manifest = formats::read_file(saved.path + "/" + checkpoint::kManifestFile, ErrorKind::checkpoint);
  saved.fingerprint = checkpoint::checksum(std::as_bytes(std::span(manifest)));
  saved.step = info.step;
  saved.has_ema = info.has_ema();
  return saved;
}

void load_weights(const SavedModel& saved, const std::string& which, RunningModel& model) {
  checkpoint::load_weights(saved.path, model.layout,
                           which == "ema" ? checkpoint::Which::ema_or_weights : checkpoint::Which::weights);
  require_finite(model.layout, saved.path);
  model.parameters_changed();
}

}  // namespace ditto
