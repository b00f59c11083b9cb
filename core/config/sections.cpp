#include "core/config/sections.h"

#include <algorithm>
#include <map>
#include <set>

#include <ditto/cache.h>
#include <ditto/error.h>
#include <ditto/guidance.h>
#include <ditto/kernels.h>
#include <ditto/optimizer.h>
#include <ditto/sampler.h>
#include <ditto/text.h>

#include "core/config/include.h"

namespace ditto {

namespace {

constexpr SectionEntry kSections[] = {
    {"run", Effect::learning, &Recipe::run},
    {"model", Effect::learning, &Recipe::model},
    {"scheduler", Effect::learning, &Recipe::scheduler},
    {"sampler", effect_of_options<Sampler>(), &Recipe::sampler},
    {"guidance", effect_of_options<Guidance>(), &Recipe::guidance},
    {"cache", effect_of_options<Cache>(), &Recipe::cache},
    {"objective", Effect::learning, &Recipe::objective},
    {"optimizer", effect_of_options<Optimizer>(), &Recipe::optimizer},
    {"data", Effect::learning, &Recipe::data},
    {"encoder", Effect::learning, &Recipe::encoders},
    {"network", Effect::learning, &Recipe::networks},
    {"lr_schedule", Effect::course, &Recipe::lr_schedule},
    {"ema", Effect::course, &Recipe::ema},
    {"loader", Effect::learning, &Recipe::loader},
    {"batch", Effect::learning, &Recipe::batch},
    {"adapter", Effect::learning, &Recipe::adapter},
    {"tread", Effect::learning, &Recipe::tread},
    {"parallel", Effect::learning, &Recipe::parallel},
    {"checkpoint", Effect::nothing, &Recipe::checkpoint},
    {"validate", Effect::nothing, &Recipe::validate},
    {"log", Effect::nothing, &Recipe::log},
    {"record", Effect::nothing, &Recipe::record},
    {"plugins", Effect::nothing, &Recipe::plugins},
    {"kernels", effect_of_options<KernelSet>(), &Recipe::kernels},
};

// What the host itself reads of a recipe's options, by section.
using OptionNames = std::map<std::string, std::set<std::string>>;

// Of a section of the host: its options.
std::vector<std::string> read_by_host(const SectionEntry& entry) {
  std::vector<std::string> names;
  Recipe defaults;
  std::visit(
      [&](auto member) {
        OptionReader reader(OptionMap{});
        if constexpr (requires { (defaults.*member).read(reader); }) {
          (defaults.*member).read(reader);
          for (const auto& info : reader.declared()) names.push_back(info.name);
        } else if constexpr (requires { (defaults.*member)->read(reader); }) {
          std::decay_t<decltype(*(defaults.*member))>().read(reader);
          for (const auto& info : reader.declared()) names.push_back(info.name);
        }
      },
      entry.member);
  return names;
}

OptionNames host_options() {
  OptionNames all;
  for (const auto& entry : sections())
    for (const auto& name : read_by_host(entry)) all[std::string(entry.name)].insert(name);
  all.erase("plugins");  // one option, whose name, kernels, is a section too
  for (const char* section : {"adapter", "tread"}) all.erase(section);  // their names are common words
  return all;
}

}  // namespace

std::span<const SectionEntry> sections() { return kSections; }

Effect effect_of_section(const std::string& section) {
  const auto first = section.substr(0, section.find('.'));
  const auto* it = std::find_if(std::begin(kSections), std::end(kSections),
                                [&](const SectionEntry& entry) { return entry.name == first; });
  return it == std::end(kSections) ? Effect::learning : it->effect;
}

std::vector<std::string> option_keys() {
  std::vector<std::string> keys;
  for (const auto& entry : sections()) {
    const std::string section(entry.name);
    auto names = read_by_host(entry);
    if (std::holds_alternative<Component Recipe::*>(entry.member)) names = {"plugin"};
    if (section == "sampler")
      for (const auto& name : own_keys(section)) names.push_back(name);
    for (const auto& name : names) keys.push_back(section + "." + name);
  }
  return keys;
}

OptionMap Section::options() const { return table ? options_of(*table, name, place) : OptionMap{name, place, {}}; }

Component Section::component() const { return table ? component_in(*table, name, place) : Component{}; }

Section section_in(const formats::Table& recipe, std::string_view name, const std::string& file) {
  const formats::Node* node = recipe.find(name);
  if (!node) return {nullptr, std::string(name), file};
  const auto* table = node->as<formats::Table>();
  if (!table)
    throw Error(ErrorKind::config, place(*node, file), std::string(name) + " is " + node->type_name(),
                "expected a section: [" + std::string(name) + "]");
  return {table, std::string(name), place(*node, file)};
}

namespace {

// Several recipes, where one is wanted.
[[noreturn]] void refuse_cascade_as_recipe(const formats::Node& cascade, const std::string& file) {
  std::string stages;
  const auto* table = cascade.as<formats::Table>();
  const auto* given = table ? table->find("stages") : nullptr;
  if (const auto* list = given ? given->as<formats::Array>() : nullptr)
    for (const auto& one : *list)
      if (const auto* recipe = one.as<std::string>()) stages += (stages.empty() ? "" : ", ") + shown(*recipe);
  throw Error(ErrorKind::config, place(cascade, file),
              "[cascade] makes it a cascade of recipes, and one recipe is wanted",
              "name one of its stages" + (stages.empty() ? stages : ": " + stages));
}

}  // namespace

void refuse_unknown_sections(const formats::Table& recipe, const std::string& file) {
  std::vector<std::string> names;
  for (const auto& entry : kSections) names.emplace_back(entry.name);
  for (const auto& entry : recipe.entries()) {
    if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
    if (entry.key == "cascade") refuse_cascade_as_recipe(entry.value, file);
    const auto near = nearest(entry.key, names);
    std::string all;
    for (const auto& one : names) all += (all.empty() ? "" : ", ") + one;
    const auto at = entry.key_source.text().empty() ? place(entry.value, file) : entry.key_source.text();
    throw Error(ErrorKind::config, at, "a recipe has no section \"" + entry.key + "\"",
                near.empty() ? "it has: " + all : "did you mean [" + near + "]?");
  }
}

void refuse_elsewhere(const OptionMap& given, const OptionReader& own) {
  static const OptionNames all = host_options();
  std::set<std::string> known;
  for (const auto& info : own.declared()) known.insert(info.name);
  for (const auto& [key, option] : given.given) {
    if (known.count(key)) continue;
    for (const auto& [section, options] : all)
      if (options.count(key))
        throw Error(ErrorKind::config, option.where, "[" + given.section + "] has no option \"" + key + "\"",
                    "it is " + section + "." + key);
  }
}

}  // namespace ditto
