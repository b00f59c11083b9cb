#include "core/cascade/cascade.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ditto/error.h>
#include <ditto/options.h>
#include <ditto/text.h>

#include "core/checkpoint/checkpoint.h"
#include "core/config/include.h"
#include "core/config/section.h"
#include "core/data/names.h"
#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/text/toml.h"

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

constexpr const char* kSection = "cascade";

struct CascadeOptions {
  std::vector<std::string> stages;
  std::string passes = names::kPassed, name, output;
  void read(OptionReader& option) {
    option("stages", stages, "recipes of the stages, beside this file, in the order in which pictures grow");
    option("passes", passes, "the tensor that a stage takes of the one before it: its picture");
    option("name", name, "of the cascade; empty: the file's, without .toml");
    option("output", output, "folder of the cascade; empty: runs/NAME");
  }
};

// Nothing where it cannot be read: who reads it as what it should be says why.
std::optional<Table> table_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  try {
    return formats::parse_toml_file(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The file that Ditto wrote into the folder of a cascade that is trained.
bool is_of_run(const std::string& file, const Table& tree) {
  return fs::path(file).filename() == kCascadeFile && tree.find(kSection) && has_notes(tree);
}

std::string file_of(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? (fs::path(path) / kCascadeFile).lexically_normal().string() : path;
}

// "sr32.run.steps=100" of these names is of "sr32"; of two that fit, "sr" and "sr.b", the longer.
std::string name_in(const std::string& set, const std::vector<std::string>& names) {
  const auto key = set.substr(0, set.find('='));
  std::string found;
  for (const auto& name : names)
    if (key.starts_with(name + ".") && name.size() > found.size()) found = name;
  return found;
}

void refuse_others(const Table& tree, const std::string& file) {
  for (const auto& entry : tree.entries())
    if (entry.key != kSection && entry.key != "record")
      throw Error(ErrorKind::config, entry.key_source.text(),
                  fmt::format("a cascade's file has no \"{}\" beside [cascade]", entry.key),
                  "write it into the recipes of the stages, one of which may include another file");
  const Node* record = tree.find("record");
  const auto* notes = record ? record->as<Table>() : nullptr;
  if (record && (!notes || !without_notes(*notes).empty()))
    throw Error(ErrorKind::config, place(*record, file), "[record] of a cascade's file is what Ditto noted in it",
                "leave it out, or write it into the recipes of the stages");
}

CascadeOptions read_options(Table& tree, const std::string& file, const std::vector<std::string>& sets) {
  const Node* section = tree.find(kSection);
  if (!section)
    throw Error(ErrorKind::config, file, "has no [cascade]", "write [cascade] with stages = [\"base.toml\", …]");
  apply_sets(tree, sets, [] { return std::vector<std::string>{}; });
  section = tree.find(kSection);
  const auto* table = section->as<Table>();
  if (!table)
    throw Error(ErrorKind::config, place(*section, file), std::string("cascade is ") + section->type_name(),
                "expected a section: [cascade]");
  CascadeOptions options;
  OptionReader reader(options_of(*table, kSection, place(*section, file)), Effect::nothing);
  options.read(reader);
  reader.finish();
  if (options.stages.size() < 2)
    reader.reject("stages", fmt::format("a cascade has two stages at least, and this one {}", options.stages.size()),
                  "name its recipes: stages = [\"base.toml\", \"sr64.toml\"]");
  if (options.stages.size() > formats::limits::kRecipeFiles)
    reader.reject("stages", fmt::format("has {} stages", options.stages.size()), "up to 64 are read");
  if (options.passes.empty()) reader.reject("passes", "is empty", "name the tensor that stages take: passes = \"low\"");
  if (options.name.find('/') != std::string::npos || options.name.starts_with('.'))
    reader.reject("name", fmt::format("\"{}\" is no folder's name", shown(options.name)),
                  "name it without a path; cascade.output says where its folder lies");
  if (!options.output.empty()) formats::require_plain_path(options.output, "cascade.output");
  return options;
}

// What is a folder's name, a file's and a word of --stage.
void require_name(const std::string& name, const std::string& where, const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::config, where,
                fmt::format("the stage of {} would be called \"{}\", {}", file, shown(name), why), "rename its recipe");
  };
  for (const char* taken : {kSection, "run", "checkpoints", "samples"})
    if (name == taken) refuse("which means another thing in a folder");
  if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos)
    refuse("which --stage takes for a place");
  if (name.empty() || name.front() == '.' || name.find('=') != std::string::npos) refuse("which is no folder's name");
}

CascadeStage stage_of(const std::string& recipe, const std::string& where, const fs::path& folder) {
  CascadeStage stage;
  formats::require_plain_path(recipe, where);
  stage.name = fs::path(recipe).stem().string();
  require_name(stage.name, where, recipe);
  stage.recipe = (folder / recipe).lexically_normal().string();
  std::error_code ignored;
  if (!fs::exists(stage.recipe, ignored))
    throw Error(ErrorKind::config, where, fmt::format("stage \"{}\" is not at {}", stage.name, shown(stage.recipe)),
                "names of stages' recipes are relative to the folder of the cascade's file");
  if (fs::is_directory(stage.recipe, ignored))
    throw Error(ErrorKind::config, where, fmt::format("stage \"{}\" is a folder: {}", stage.name, shown(stage.recipe)),
                "name its recipe, a file");
  const auto tree = table_of(stage.recipe);
  if (tree && tree->find(kSection))
    throw Error(
        ErrorKind::config, where,
        fmt::format("stage \"{}\" is itself a cascade, and a stage is a recipe: {}", stage.name, shown(stage.recipe)),
        "name that cascade's stages here, in their order");
  return stage;
}

// Each to its stage; what is the cascade's own was read before.
void share_out(const std::vector<std::string>& sets, Cascade& cascade) {
  std::vector<std::string> names;
  for (const auto& stage : cascade.stages) names.push_back(stage.name);
  for (const auto& set : sets) {
    const auto name = name_in(set, names);
    if (name.empty())
      throw Error(ErrorKind::config, "--set " + set,
                  fmt::format("does not say which stage of {} it is of", shown(cascade.file)),
                  fmt::format("write it as --set {}.{}; stages: {}", names.front(), set, cascade.names()));
    auto own = set.substr(name.size() + 1);
    if (own.starts_with("run.output="))
      throw Error(ErrorKind::config, "--set " + set, "would take a stage's run out of its cascade's folder",
                  "set the folder of all: --set cascade.output=FOLDER");
    cascade.stages[cascade.place_of(name, {})].sets.push_back(std::move(own));
  }
}

}  // namespace

bool is_cascade(const std::string& path) {
  const auto file = file_of(path);
  const auto tree = table_of(file);
  return tree && tree->find(kSection) && (file == path || is_of_run(file, *tree));
}

Cascade read_cascade(const std::string& path, const std::vector<std::string>& sets) {
  Cascade cascade;
  cascade.file = recipe_file(file_of(path));
  const auto folder = fs::path(cascade.file).parent_path();
  std::vector<std::string> of_cascade, of_stages;
  for (const auto& set : sets) (name_in(set, {kSection}).empty() ? of_stages : of_cascade).push_back(set);
  auto tree = formats::parse_toml_file(cascade.file);
  const auto options = read_options(tree, cascade.file, of_cascade);
  refuse_others(tree, cascade.file);
  cascade.passes = options.passes;
  cascade.name = options.name.empty() ? fs::path(cascade.file).stem().string() : options.name;
  cascade.output = options.output;
  if (cascade.output.empty() && is_of_run(cascade.file, tree)) cascade.output = folder.empty() ? "." : folder.string();
  if (cascade.output.empty()) cascade.output = (fs::path("runs") / cascade.name).string();
  const auto where = place(*tree.find_path("cascade.stages"), cascade.file);
  std::set<std::string> seen;
  for (const auto& recipe : options.stages) {
    cascade.stages.push_back(stage_of(recipe, where, folder));
    auto& stage = cascade.stages.back();
    stage.folder = (fs::path(cascade.output) / stage.name).lexically_normal().string();
    if (!seen.insert(stage.name).second)
      throw Error(ErrorKind::config, where, fmt::format("two stages would be called \"{}\"", stage.name),
                  "rename the recipe of one of them: a stage is called by its file");
  }
  share_out(of_stages, cascade);
  return cascade;
}

std::vector<std::string> CascadeStage::to_train() const {
  auto all = sets;
  all.push_back("run.output=" + formats::render_toml_value(Node{folder, {}}));
  return all;
}

std::size_t Cascade::place_of(const std::string& stage, const std::string& where) const {
  for (std::size_t i = 0; i < stages.size(); ++i)
    if (stages[i].name == stage || std::to_string(i + 1) == stage) return i;
  throw Error(ErrorKind::config, where, fmt::format("the cascade {} has no stage \"{}\"", shown(file), shown(stage)),
              fmt::format("it has 1 to {}: {}", stages.size(), names()));
}

std::string Cascade::names() const {
  std::string all;
  for (const auto& stage : stages) all += (all.empty() ? "" : ", ") + stage.name;
  return all;
}

std::string name_of_stage(const Cascade& cascade, std::size_t stage) {
  return fmt::format("stage {} of {}, \"{}\"", stage + 1, shown(cascade.name), shown(cascade.stages.at(stage).name));
}

std::string checkpoint_of_stage(const Cascade& cascade, std::size_t stage) {
  const auto& folder = cascade.stages.at(stage).folder;
  std::error_code ignored;
  if (fs::is_directory(folder, ignored) && checkpoint::is_of_a_run(folder)) {
    try {
      return checkpoint::newest(folder);
    } catch (const Error&) {  // a run that was begun, and has saved nothing
    }
  }
  throw Error(ErrorKind::checkpoint, folder, name_of_stage(cascade, stage) + ", has no checkpoint",
              fmt::format("train it: `ditto train {} --stage {}`", shown(cascade.file), cascade.stages[stage].name));
}

void refuse_cascade(const std::string& path, const std::string& command) {
  if (!is_cascade(path)) return;
  const auto cascade = read_cascade(path);
  std::string folders;
  for (const auto& stage : cascade.stages) folders += (folders.empty() ? "" : ", ") + shown(stage.folder);
  throw Error(ErrorKind::config, path, "is a cascade, and `" + command + "` is of one run or recipe",
              "name a stage's: " + folders);
}

}  // namespace ditto
