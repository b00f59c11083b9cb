#include "core/config/include.h"

#include <algorithm>
#include <filesystem>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/formats/file.h"
#include "core/formats/limits.h"

namespace ditto {

namespace fs = std::filesystem;
namespace limits = formats::limits;
using formats::Node;
using formats::Table;

std::vector<std::string> own_keys(const std::string& section) {
  if (section == "sampler") return {"steps", "clip", "percentile"};
  if (section == "optimizer") return {"group"};
  if (section.starts_with("optimizer.group.")) return {"match", "lr_scale"};
  if (section.starts_with("data.part.")) return {"weight", "epochs"};
  if (section.starts_with("network.")) return {"trains", "weights", "format", "which", "precision", "parallel"};
  if (section.starts_with("encoder.")) return {"weights", "format", "which", "precision", "parallel"};
  return {};
}

namespace {

// Another plugin does not inherit the options of the one it replaces.
void make_room(Table& section, const std::string& name, const Node* plugin) {
  const Node* old = section.find("plugin");
  if (!old || !plugin || formats::same_value(*old, *plugin)) return;
  Table rest;
  for (const auto& key : own_keys(name))
    if (const Node* own = section.find(key)) rest.set(key, *own);
  section = std::move(rest);
}

void merge(Table& into, const Table& from, const std::string& section = {}) {
  for (const auto& entry : from.entries()) {
    Node* there = into.find(entry.key);
    auto* inner = there ? there->as<Table>() : nullptr;
    const auto* other = entry.value.as<Table>();
    if (inner && other) {
      const auto name = section.empty() ? entry.key : section + "." + entry.key;
      make_room(*inner, name, other->find("plugin"));
      merge(*inner, *other, name);
    } else {
      into.set(entry.key, entry.value);
    }
    if (into.size() > limits::kTableKeys)
      throw Error(ErrorKind::config, entry.key_source.text(),
                  "with the files that were included the table has over 1000 keys, which no recipe's has");
  }
}

std::vector<std::string> included(const Node& node) {
  if (const auto* one = node.as<std::string>()) return {*one};
  std::vector<std::string> files;
  if (const auto* list = node.as<formats::Array>())
    for (const auto& item : *list)
      if (const auto* file = item.as<std::string>()) files.push_back(*file);
  if (const auto* list = node.as<formats::Array>(); list && files.size() == list->size()) return files;
  throw Error(ErrorKind::config, node.source.text(), "include is " + std::string(node.type_name()),
              "expected a file's name, or a list of them");
}

std::size_t count_values(const Node& node);

std::size_t count_values(const Table& table) {
  std::size_t count = 0;
  for (const auto& entry : table.entries()) count += count_values(entry.value);
  return count;
}

std::size_t count_values(const Node& node) {
  std::size_t count = 1;
  if (const auto* table = node.as<Table>()) count += count_values(*table);
  if (const auto* list = node.as<formats::Array>())
    for (const auto& item : *list) count += count_values(item);
  return count;
}

// Reads a recipe and what it includes. A file counts each time it is read: two dozen that each include the next one
// twice would be read sixteen million times.
class Includes {
 public:
  Table read(const std::string& path) {
    std::error_code error;
    auto canonical = fs::weakly_canonical(path, error).string();
    if (error) canonical = path;
    check_circle(path, canonical);
    chain_.push_back(canonical);
    Table own = own_table(path);
    Table result;
    if (const Node* node = own.find("include")) {
      for (const auto& file : included(*node)) merge(result, read(target(path, file, *node)));
      own.erase("include");
    }
    merge(result, own);
    chain_.pop_back();
    return result;
  }

 private:
  void check_circle(const std::string& path, const std::string& canonical) const {
    if (std::find(chain_.begin(), chain_.end(), canonical) == chain_.end()) return;
    std::string circle;
    for (const auto& file : chain_) circle += fs::path(file).filename().string() + " -> ";
    throw Error(ErrorKind::config, path, "includes itself: " + circle + fs::path(canonical).filename().string(),
                "remove one of these includes");
  }

  Table own_table(const std::string& path) {
    if (++files_ > limits::kRecipeFiles)
      throw Error(ErrorKind::config, path, "is included as file number 65 of one recipe; up to 64 are read",
                  "include fewer files");
    Table own = formats::parse_toml_file(path);
    values_ += count_values(own);
    if (values_ > limits::kRecipeValues)
      throw Error(ErrorKind::config, path, "this file and those read before it hold over 100,000 values",
                  "include fewer files");
    return own;
  }

  static std::string target(const std::string& path, const std::string& file, const Node& include) {
    const auto refuse = [&](const std::string& what, const std::string& remedy) {
      throw Error(ErrorKind::config, include.source.text(), "includes \"" + file + "\", which " + what, remedy);
    };
    if (file.empty()) refuse("names no file", "name one, or leave it out");
    formats::require_plain_path(file, include.source.text());
    const auto found = (fs::path(path).parent_path() / file).lexically_normal().string();
    if (const auto dangling = formats::said_of_dangling(found); !dangling.empty())
      refuse(dangling, "bring that back, or include another file");
    if (!fs::exists(found)) refuse("is not at " + found, "the name is relative to the folder of " + path);
    if (fs::is_directory(found)) refuse("is a folder", "name a file in it");
    return found;
  }

  std::vector<std::string> chain_;  // from the recipe to the file that is read now
  std::size_t files_ = 0, values_ = 0;
};

// One word: a section's name, or an option's whose section is left out.
[[noreturn]] void refuse_key(const Table& tree, const std::string& key, const std::string& set, KeysOfHost known) {
  if (tree.find(key))
    throw Error(ErrorKind::config, "--set " + set, "\"" + key + "\" is a section, not an option",
                "write it as --set " + key + ".OPTION=VALUE");
  std::string places;
  for (const auto& [section, source, node] : tree.entries())
    if (const auto* table = node.as<Table>(); table && table->find(key))
      places += (places.empty() ? "" : " or ") + ("--set " + section + "." + set);
  if (places.empty() && key != "plugin")  // of the sections that this recipe leaves to their defaults
    for (const auto& one : known())
      if (one.substr(one.find('.') + 1) == key)
        places += (places.empty() ? "" : " or ") + ("--set " + one.substr(0, one.find('.')) + "." + set);
  throw Error(ErrorKind::config, "--set " + set, "names no section for \"" + key + "\"",
              "write it as " + (places.empty() ? "--set SECTION." + set : places));
}

// The first of the runs in a folder, and how many there are.
std::pair<std::string, size_t> runs_in(const fs::path& folder) {
  std::vector<std::string> runs;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code))
    if (std::error_code none; fs::exists(entry.path() / kRunRecipe, none))
      runs.push_back(entry.path().lexically_normal().string());
  return {runs.empty() ? std::string() : *std::min_element(runs.begin(), runs.end()), runs.size()};
}

// Of a folder that no recipe lies in: a run's, or pictures'.
std::string remedy_without_recipes(const fs::path& path) {
  std::error_code code;
  const auto own = (path / ".").lexically_normal().parent_path();
  const auto above = own.has_parent_path() ? own.parent_path() : fs::path(".");
  if (own.filename() == "checkpoints" && fs::exists(above / kRunRecipe, code))
    return "it holds the checkpoints of a run: name the run, " + shown(above.string());
  if (fs::is_directory(path / "checkpoints", code) || fs::exists(path / ".lock", code))
    return "it is the folder of a run without its run.toml: name the recipe, with --set run.output=" +
           shown(path.string()) + " to write there";
  if (const auto [run, count] = runs_in(path); count > 0)
    return "name a run in it, as " + shown(run) + (count > 1 ? ", one of " + std::to_string(count) + " there" : "");
  return "name the file; of a folder of pictures `ditto init " + shown(path.string()) + "` makes one";
}

// Somebody means a run, a recipe in it, or pictures to learn from.
std::string remedy_of_folder(const std::string& folder) {
  if (const auto stages = remedy_of_cascade(folder); !stages.empty()) return stages;
  std::error_code code;
  const auto path = fs::path(folder);
  if (fs::exists(path / "manifest.json", code) && fs::exists(path / "recipe.toml", code))
    return "it is a checkpoint: name its run, with --resume " + shown(folder) + " to go on from it";
  std::vector<std::string> recipes;
  for (const auto& entry : fs::directory_iterator(path, code))
    if (entry.path().extension() == ".toml") recipes.push_back(entry.path().filename().string());
  if (recipes.empty()) return remedy_without_recipes(path);
  std::sort(recipes.begin(), recipes.end());
  return "name the file, as " + shown((path / recipes.front()).lexically_normal().string()) +
         (recipes.size() > 1 ? ", one of " + std::to_string(recipes.size()) + " there" : "");
}

// What is set of a plugin's options is of the one that is set, whichever is said first.
std::vector<std::string> plugins_first(std::vector<std::string> sets) {
  std::stable_partition(sets.begin(), sets.end(),
                        [](const std::string& set) { return set.substr(0, set.find('=')).ends_with(".plugin"); });
  return sets;
}

}  // namespace

std::string remedy_of_cascade(const std::string& folder) {
  const auto path = fs::path(folder) / kCascadeFile;
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return {};
  std::string stages;
  try {
    const auto tree = formats::parse_toml_file(path.string());
    const auto* list =
        tree.find_path("cascade.stages") ? tree.find_path("cascade.stages")->as<formats::Array>() : nullptr;
    if (!list) return {};
    for (const auto& one : *list)
      if (const auto* recipe = one.as<std::string>(); recipe && fs::exists(fs::path(folder) / *recipe, code))
        stages += (stages.empty() ? "" : ", ") +
                  shown((fs::path(folder) / fs::path(*recipe).stem()).lexically_normal().string());
  } catch (const Error&) {  // what is no TOML names none
    return {};
  }
  return stages.empty() ? std::string() : "it is the folder of a cascade: name a stage's, of " + stages;
}

std::string recipe_file(const std::string& given) {
  std::error_code code;
  const auto there = fs::status(given, code);
  if (const auto dangling = formats::said_of_dangling(given); !dangling.empty())
    throw Error(ErrorKind::config, given, dangling, "name a recipe that is there");
  if (there.type() == fs::file_type::not_found)
    throw Error(ErrorKind::config, given, "there is no such recipe", "recipes that come with Ditto are in configs/");
  if (fs::is_directory(there)) {
    const auto of_run = fs::path(given) / kRunRecipe;
    if (fs::exists(of_run, code)) return of_run.lexically_normal().string();
    throw Error(ErrorKind::config, given, "is a folder, and a recipe is a file", remedy_of_folder(given));
  }
  if (fs::is_fifo(there) || fs::is_character_file(there) || fs::is_socket(there))  // /dev/stdin, <(…)
    throw Error(ErrorKind::config, given,
                "is a pipe or a device, and a recipe is a file: ranks and resumes read it again",
                "write it to a file, and name that");
  return given;
}

Table read_with_includes(const std::string& path) { return Includes().read(path); }

void apply_sets(Table& tree, const std::vector<std::string>& sets, KeysOfHost known) {
  for (const auto& set : plugins_first(sets)) {
    const auto equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::config, "--set " + set, "is not KEY=VALUE", "write it as --set run.steps=100");
    const auto key = set.substr(0, equals);
    if (key.find('.') == std::string::npos) refuse_key(tree, key, set, known);
    auto value = formats::parse_toml_value(set.substr(equals + 1), "--set " + set);
    if (key.ends_with(".plugin")) {
      const auto section = key.substr(0, key.size() - 7);
      Node* there = const_cast<Node*>(tree.find_path(section));
      if (auto* table = there ? there->as<Table>() : nullptr) make_room(*table, section, &value);
    }
    tree.set_path(key, std::move(value));
  }
}

}  // namespace ditto
