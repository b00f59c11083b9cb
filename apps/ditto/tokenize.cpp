// ditto tokenize RECIPE|RUN TEXT… [--encoder NAME] [--json]
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/help.h"
#include "core/assembly/assembly.h"
#include "core/formats/text/json.h"
#include "core/mesh/paper_mesh.h"
#include "core/network/saved_model.h"
#include "core/plugin/trial.h"
#include "core/process/launch.h"

namespace ditto {

namespace {

struct TokenizeArguments {
  std::string from, encoder;
  std::vector<std::string> texts, sets;
  bool json = false;
};

struct Tokens {
  std::string encoder, text;
  TokenRow row;
};

// The encoders are made on shapes alone, of files of weights too where they are there; data is not read.
std::vector<Tokens> tokens_of(const TokenizeArguments& a, const CommandLine& line) {
  AssemblyParts parts;
  parts.weights = RunningModel::Weights::none;
  parts.frozen = FrozenWeights::files;
  parts.shapes_only = true;
  SavedModel saved;
  if (std::filesystem::is_regular_file(a.from)) {
    saved.recipe = Recipe::read(a.from, a.sets);
    parts.data = true;
  } else {
    saved = open_saved(a.from, a.sets);
    parts.saved = saved.shapes;
  }
  auto& recipe = saved.recipe;
  recipe.run.device = "meta";
  recipe.parallel = {};
  recipe.validate.every = 0;
  Registry registry(plugin_folders(line.plugin_path), try_new_plugins);
  registry.try_out(plugins_of(recipe));
  const ShapesAlone no_numbers;
  const PaperMesh mesh(complete_degrees({}, 1), {}, PaperMesh::Peers::silent);
  const Assembly assembly(recipe, registry, mesh, parts, {});
  std::vector<Tokens> all;
  std::string names;
  for (const auto& one : assembly.networks->encoders) {
    const auto name = one->section.substr(one->section.find('.') + 1);
    names += (names.empty() ? "" : ", ") + name;
    if (!a.encoder.empty() && name != a.encoder) continue;
    for (const auto& text : a.texts)
      if (auto row = one->encoder->tokens(text)) all.push_back({name, text, std::move(*row)});
  }
  if (all.empty())
    throw Error(ErrorKind::config, a.from,
                (a.encoder.empty() ? "none of its encoders" : "no encoder '" + shown(a.encoder) + "' of it") +
                    " has a vocabulary of text; its encoders: " + (names.empty() ? "none" : names),
                "name a recipe with a text encoder, and by --encoder which one");
  return all;
}

void tokenize(const TokenizeArguments& a, const CommandLine& line) {
  const auto all = tokens_of(a, line);
  if (a.json) {
    auto list = nlohmann::json::array();
    for (const auto& one : all)
      list.push_back({{"encoder", one.encoder}, {"text", one.text}, {"length", one.row.length}, {"ids", one.row.ids}});
    std::cout << formats::ascii_json(list) << '\n';
    return;
  }
  for (const auto& one : all) {
    const auto end = one.row.ids.begin() + one.row.length;
    std::cout << fmt::format("{} \"{}\": {} of {} tokens: {}\n", one.encoder, shown(one.text), one.row.length,
                             one.row.ids.size(), fmt::join(one.row.ids.begin(), end, " "));
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("tokenize", "Print the ids that a recipe's text encoders see of texts");
  auto a = std::make_shared<TokenizeArguments>();
  command->add_option("from", a->from, "a recipe, a run's folder, or a checkpoint")->required();
  command->add_option(kTexts, a->texts, "texts, each an argument")->required();
  command->add_option("--encoder", a->encoder, "of [encoder.NAME] alone; default: of every one that has a vocabulary");
  command->add_flag("--json", a->json, "for programs: with the padding");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the recipe")->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->footer("Example: ditto tokenize recipe.toml \"a red apple\" --json");
  command->callback([a, &line] { tokenize(*a, line); });
}

}  // namespace ditto
