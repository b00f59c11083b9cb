// The table of what each option changes, against docs/config.md, docs/parallelism.md and what is declared.
#include "core/config/option_effects.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/guidance.h>
#include <ditto/model.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/parallel/strategy.h>
#include <ditto/sampler.h>
#include <ditto/scheduler.h>

#include "core/config/recipe.h"
#include "core/plugin/registry.h"

using ditto::ChangeKind;

namespace {

const std::map<std::string, ChangeKind> kNames{
    {"changes what is learned", ChangeKind::learning},
    {"changes the training from here on", ChangeKind::course},
    {"equal within rounding", ChangeKind::rounding},
    {"the same bits if the micro-batches stay the same", ChangeKind::sharing},
    {"nothing of the training", ChangeKind::nothing}};

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

template <class... Interfaces>
std::vector<std::string> declared_by_plugins(ditto::Registry& registry) {
  std::vector<std::string> keys;
  const auto add = [&]<class Interface>(const Interface*) {
    std::string section = Interface::kKind;
    if (section == "encoder") section += ".image";
    for (const auto& file : registry.files()) {
      if (file.kind != Interface::kKind || !file.refusal.empty()) continue;
      ditto::OptionReader reader(ditto::OptionMap{section, "test", {}});
      registry.factory<Interface>(file.id).declare(reader);
      for (const auto& option : reader.declared()) keys.push_back(section + "." + option.name);
    }
  };
  (add(static_cast<const Interfaces*>(nullptr)), ...);
  return keys;
}

}  // namespace

TEST_CASE("docs/config.md says of every option what the table says") {
  std::map<std::string, ChangeKind> in_docs, in_code;
  for (const auto& line : lines_of("config.md")) {
    const auto cells = cells_of(line);
    if (cells.size() < 3 || !kNames.count(cells[1])) continue;
    for (const auto& key : quoted(cells[2])) CHECK_MESSAGE(in_docs.emplace(key, kNames.at(cells[1])).second, key);
  }
  for (const auto& row : ditto::option_effects()) CHECK_MESSAGE(in_code.emplace(row.key, row.kind).second, row.key);
  CHECK(in_docs.size() > 50);
  for (const auto& [key, kind] : in_docs) CHECK_MESSAGE((in_code.count(key) && in_code.at(key) == kind), key);
  for (const auto& [key, kind] : in_code) CHECK_MESSAGE(in_docs.count(key), key);
}

TEST_CASE("docs/parallelism.md promises bits where the table does") {
  int rows = 0;
  for (const auto& line : lines_of("parallelism.md")) {
    const auto cells = cells_of(line);
    if (cells.size() != 5) continue;
    const bool bits = cells[4].starts_with("the same bits"), rounding = cells[4].starts_with("rounding");
    if (!bits && !rounding) continue;
    const auto words = quoted(cells[1] == "(none)" ? cells[2] : cells[1]);
    REQUIRE_FALSE(words.empty());
    const auto key = "parallel." + words[0].substr(0, words[0].find(' '));
    CHECK_MESSAGE(ditto::change_kind(key) == (bits ? ChangeKind::sharing : ChangeKind::rounding), key);
    if (const auto but = cells[4].find("(rounding with `"); but != std::string::npos) {
      const auto word = quoted(cells[4].substr(but)).at(0);
      CHECK(ditto::change_kind("parallel." + word.substr(0, word.find(' '))) == ChangeKind::rounding);
    }
    ++rows;
  }
  CHECK(rows == 8);
}

TEST_CASE("every option of the host and of the plugins here has a row") {
  auto recipe = ditto::Recipe::parse("[sampler]\nplugin = \"euler\"\n[kernels]\nlinear = \"reference\"\n", "test");
  std::set<std::string> keys;
  for (const auto& [key, value] : ditto::flat(recipe.resolved())) keys.insert(key);
  CHECK(keys.count("parallel.hang_s") == 1);
  ditto::Registry registry;
  for (const auto& key :
       declared_by_plugins<ditto::Model, ditto::Scheduler, ditto::Sampler, ditto::Guidance, ditto::Objective,
                           ditto::Optimizer, ditto::Source, ditto::Encoder, ditto::ParallelStrategy>(registry))
    keys.insert(key);
  CHECK(keys.count("parallel.virtual_stages") == 1);
  for (const auto& key : keys) CHECK_MESSAGE(ditto::effect_of(key), key);
}

TEST_CASE("an option's own row wins over its section's, and none counts as the strictest") {
  CHECK(ditto::change_kind("parallel.pipeline_conditioning") == ChangeKind::rounding);
  CHECK(ditto::change_kind("parallel.pipeline") == ChangeKind::sharing);
  CHECK(ditto::change_kind("plugins.kernels") == ChangeKind::rounding);
  CHECK(ditto::change_kind("parallel.of_a_stranger") == ChangeKind::learning);
  CHECK(ditto::change_kind("modelling.depth") == ChangeKind::learning);
  CHECK_FALSE(ditto::effect_of("parallel.pipeline_condition"));
}
