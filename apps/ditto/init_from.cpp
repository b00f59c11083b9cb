#include "apps/ditto/init_from.h"

#include <filesystem>
#include <iostream>
#include <span>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/config/recipe.h"
#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/output_folder.h"
#include "core/plan/nemo_recipe.h"
#include "core/plugin/trial.h"

namespace ditto {

int init_from(const std::string& yaml, const std::string& out, const std::vector<std::string>& plugin_path) {
  namespace fs = std::filesystem;
  formats::require_there(yaml, "name a YAML file that NeMo's Imagen is trained by");
  const std::string recipe = out.empty() ? fs::path(yaml).stem().string() + ".toml" : out;
  formats::require_output_file(recipe, "--out");
  if (fs::exists(recipe)) throw Error(ErrorKind::config, recipe, "is there already", "choose another name with --out");
  Registry registry(plugin_folders(plugin_path), try_new_plugins);
  const auto made =
      recipe_of_nemo(formats::read_file(yaml, ErrorKind::config, formats::limits::kYamlBytes), yaml, registry);
  auto text = "# Made by `ditto init --from` of " + shown(fs::path(yaml).filename().string()) +
              ". What stands there and needs no option here:\n";
  for (const auto& note : made.notes) text += "# - " + note + "\n";
  text += "\n" + made.text;
  formats::write_file(recipe, std::as_bytes(std::span(text)), ErrorKind::config);
  Recipe::read(recipe);  // as everyone reads it
  for (const auto& note : made.notes) std::cerr << "note: " << note << '\n';
  std::cout << "next: ditto config check " << shown(recipe) << '\n';
  return 0;
}

}  // namespace ditto
