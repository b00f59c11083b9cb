// What options declare that they change, against the tables of docs/config.md and docs/choosing_a_layout.md.
#include "core/config/option_effects.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/config/differences.h"
#include "core/config/recipe.h"
#include "core/plugin/kinds.h"
#include "core/plugin/registry.h"

using ditto::Effect;

namespace {

const std::map<std::string, Effect> kNames{{"changes what is learned", Effect::learning},
                                           {"changes the training from here on", Effect::course},
                                           {"equal within rounding", Effect::bits},
                                           {"the same bits if the micro-batches stay the same", Effect::speed},
                                           {"nothing of the training", Effect::nothing}};

std::vector<std::string> lines_of(const char* page) {
  std::ifstream file(std::string(DITTO_SOURCE_DIR) + "/docs/" + page);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  REQUIRE_FALSE(lines.empty());
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '|');) {
    const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

std::vector<std::string> quoted(const std::string& cell) {
  static const std::regex kQuoted("`([^`]+)`");
  std::vector<std::string> words;
  for (std::sregex_iterator it(cell.begin(), cell.end(), kQuoted), end; it != end; ++it) words.push_back((*it)[1]);
  return words;
}

// As a run knows them: of every plugin here, whether a recipe names it or not.
ditto::OptionEffects all_effects(std::set<std::string>& keys) {
  const auto recipe = ditto::Recipe::parse(
      "[sampler]\nplugin = \"euler\"\n[kernels]\nlinear = \"reference\"\n[network.guide]\nweights = "
      "\"runs/small\"\nformat = \"diffusers\"\n"
      "[encoder.image]\nplugin = \"identity\"\nweights = \"runs/small\"\nwhich = \"ema\"\nformat = "
      "\"diffusers\"\n[adapter]\nrank = 8\n[tread]\nratio = 0.5\n[run]\ntransport = \"nccl\"\nread_results = "
      "\"late\"\nmemory_format = \"channels_last\"\n[parallel]\nstrategies = "
      "[\"mine\"]\n[loader]\nencoded = \"encoded\"\nencode_ahead = 1\n",
      "test");
  for (const auto& [key, value] : ditto::flat(recipe.resolved())) keys.insert(key);
  auto effects = recipe.effects();
  ditto::Registry registry;
  ditto::for_each_kind([&](auto tag) {
    using Interface = typename decltype(tag)::type;
    const std::string section =
        std::string(Interface::kKind) + (Interface::kKind == std::string("encoder") ? ".image" : "");
    for (const auto& file : registry.files()) {
      if (file.kind != Interface::kKind || !file.refusal.empty() || file.kind == "transport") continue;
      ditto::OptionReader reader(ditto::OptionMap{section, "test", {}}, ditto::effect_of_options<Interface>());
      registry.factory<Interface>(file.id).declare(reader);
      effects.add(section, reader.declared());
      for (const auto& option : reader.declared()) keys.insert(section + "." + option.name);
    }
  });
  return effects;
}

// A network's or encoder's own name is NAME in the table.
std::string row_of(const std::string& key) {
  static const std::regex kNamed("^(network|encoder)\\.[^.]+\\.");
  return std::regex_replace(key, kNamed, "$1.NAME.");
}

// "model.*" is every option of that section that has no row of its own.
bool is_row_of(const std::string& row, const std::string& key) {
  return row == key || (row.ends_with(".*") && key.starts_with(row.substr(0, row.size() - 1)));
}

}  // namespace

TEST_CASE("every option of the host and of the plugins here changes what docs/config.md says") {
  std::map<std::string, Effect> rows;
  for (const auto& line : lines_of("config.md")) {
    const auto cells = cells_of(line);
    if (cells.size() < 3 || !kNames.count(cells[1])) continue;
    for (const auto& key : quoted(cells[2])) CHECK_MESSAGE(rows.emplace(key, kNames.at(cells[1])).second, key);
  }
  CHECK(rows.size() > 50);
  std::set<std::string> keys, unused;
  const auto effects = all_effects(keys);
  CHECK(keys.count("parallel.virtual_stages") == 1);
  CHECK(keys.count("parallel.hang_s") == 1);
  for (const auto& [row, effect] : rows) unused.insert(row);
  for (const auto& key : keys) {
    const auto own = rows.find(row_of(key)), of_section = rows.find(key.substr(0, key.find('.')) + ".*");
    const auto row = own != rows.end() ? own : of_section;
    CHECK_MESSAGE(row != rows.end(), key);
    if (row == rows.end()) continue;
    CHECK_MESSAGE(effects.of(key) == row->second, key << " changes " << ditto::name(effects.of(key)));
    for (const auto& [other, effect] : rows)
      if (is_row_of(other, row_of(key))) unused.erase(other);
  }
  for (const auto& row : unused) CHECK_MESSAGE(row == "plugins.path", row << " is no option");  // of earlier recipes
}

TEST_CASE("options that name places are not compared between ranks") {
  std::set<std::string> keys, places;
  const auto effects = all_effects(keys);
  for (const auto& key : keys)
    if (effects.is_place(key)) places.insert(key);
  CHECK(places == std::set<std::string>{"run.folder", "run.output", "run.init_from", "data.path", "data.shards",
                                        "data.table", "data.validation_table", "data.folder", "adapter.weights",
                                        "data.validation_shards", "network.guide.weights", "encoder.image.weights",
                                        "encoder.image.tokenizer", "loader.encoded"});
}

TEST_CASE("docs/choosing_a_layout.md promises bits where the table does") {
  int rows = 0;
  std::set<std::string> keys;
  const auto effects = all_effects(keys);
  for (const auto& line : lines_of("choosing_a_layout.md")) {
    const auto cells = cells_of(line);
    if (cells.size() != 5) continue;
    const bool bits = cells[4].starts_with("the same bits"), rounding = cells[4].starts_with("rounding");
    if (!bits && !rounding) continue;
    const auto words = quoted(cells[1] == "(none)" ? cells[2] : cells[1]);
    REQUIRE_FALSE(words.empty());
    const auto key = "parallel." + words[0].substr(0, words[0].find(' '));
    CHECK_MESSAGE(effects.of(key) == (bits ? Effect::speed : Effect::bits), key);
    if (const auto but = cells[4].find("(rounding with `"); but != std::string::npos) {
      const auto word = quoted(cells[4].substr(but)).at(0);
      CHECK(effects.of("parallel." + word.substr(0, word.find(' '))) == Effect::bits);
    }
    ++rows;
  }
  CHECK(rows == 8);
}

TEST_CASE("an option that nobody declares is as its kind's, and in [parallel] the strictest") {
  std::set<std::string> keys;
  const auto effects = all_effects(keys);
  CHECK(effects.of("parallel.of_a_stranger") == Effect::learning);
  CHECK(effects.of("modelling.depth") == Effect::learning);
  CHECK(effects.of("model.plugin") == Effect::learning);
  CHECK(effects.of("optimizer.of_a_stranger") == Effect::course);
  CHECK(effects.of("encoder.image.plugin") == Effect::learning);
  CHECK(effects.of("sampler.plugin") == Effect::nothing);
  CHECK(effects.of("kernels.attention") == Effect::bits);
}
