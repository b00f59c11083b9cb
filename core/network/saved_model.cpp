#include "core/network/saved_model.h"

#include <algorithm>

#include "core/checkpoint/manifest.h"
#include "core/formats/file.h"
#include "core/network/finite.h"

namespace ditto {

namespace {

// What was said of ranks and of folders belongs to the run that trained: a checkpoint does not say where to read or
// write.
std::string without_its_place(const std::string& recipe_toml, const std::string& name) {
  auto tree = formats::parse_toml(recipe_toml, name);
  tree.erase("parallel");
  auto* run = tree.find("run");
  if (auto* options = run ? run->as<formats::Table>() : nullptr)
    for (const char* key : {"folder", "output", "init_from", "init_missing", "init_extra", "init_other_shape"})
      options->erase(key);
  return formats::render_toml(tree);
}

}  // namespace

SavedModel open_saved(const std::string& path, const std::vector<std::string>& sets) {
  SavedModel saved;
  saved.path = *checkpoint::resolve(path).path;
  const auto info = checkpoint::describe(saved.path);
  saved.recipe = Recipe::parse(without_its_place(info.recipe_toml, saved.path + "/recipe.toml"),
                               saved.path + "/recipe.toml", sets);
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
