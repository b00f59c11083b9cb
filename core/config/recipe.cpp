#include "core/config/recipe.h"

#include <algorithm>
#include <filesystem>

#include <ditto/error.h>
#include <ditto/math/sizes.h>

#include "core/config/include.h"
#include "core/config/numerics.h"
#include "core/config/section.h"
#include "core/config/sections.h"
#include "core/formats/file.h"

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

// What says where code lies comes from the person who runs it, and never from a file that came with data. An empty list
// says nothing.
void refuse_plugin_path(const Table& tree, const std::string& file) {
  const Node* path = tree.find_path("plugins.path");
  const auto* list = path ? path->as<formats::Array>() : nullptr;
  if (!path || (list && list->empty())) return;
  throw Error(ErrorKind::config, place(*path, file),
              "plugins.path: a recipe names plugins, and does not say where they are",
              "take it out (or give --set plugins.path=[]), and name the folder by --plugin-path FOLDER or in "
              "DITTO_PLUGIN_PATH, if you trust what is in there");
}

// Earlier recipes and checkpoints have guidance as two options of [sampler].
void move_guidance(Table& tree, const std::string& file) {
  Node* sampler = tree.find("sampler");
  auto* options = sampler ? sampler->as<Table>() : nullptr;
  if (!options) return;
  Table guidance;
  for (const auto& [before, now] : {std::pair("guidance", "scale"), {"guidance_channels", "channels"}}) {
    const Node* given = options->find(before);
    if (!given) continue;
    if (tree.find("guidance"))
      throw Error(ErrorKind::config, place(*given, file),
                  "sampler." + std::string(before) + " stands beside [guidance]",
                  "leave it out: it is guidance." + std::string(now));
    guidance.set(now, *given);
    options->erase(before);
  }
  if (guidance.empty()) return;
  guidance.set("plugin", {std::string(kScaleGuidance), sampler->source});
  tree.set("guidance", {std::move(guidance), sampler->source});
}

}  // namespace

namespace {

// The run in whose folder a recipe lies as its run.toml; empty: in none.
std::string run_around(const std::string& path) {
  if (fs::path(path).filename() != kRunRecipe) return {};
  const auto folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::current_path();
  std::error_code ignored;
  return fs::is_directory(folder / "checkpoints", ignored) ? folder.string() : std::string();
}

}  // namespace

Recipe Recipe::read(const std::string& given, const std::vector<std::string>& sets) {
  Recipe recipe;
  const auto path = recipe_file(given);
  recipe.name = path;
  Table tree = read_with_includes(path);
  apply_sets(tree, sets, option_keys);
  recipe.interpret(std::move(tree));
  if (recipe.run.folder.empty()) recipe.run.folder = fs::absolute(path).parent_path().lexically_normal().string();
  recipe.find_places();
  const bool is_named = is_set(recipe.place_of("run.output")) || is_set(recipe.place_of("run.name"));
  if (const auto own = run_around(path); recipe.of_run_ && !is_named && !own.empty()) recipe.run.output = own;
  return recipe;
}

namespace {

// Of an option that names one place, or several.
void require_plain_places(const OptionValue& value, const std::string& where, bool takes_addresses) {
  if (const auto* one = std::get_if<std::string>(&value)) formats::require_plain_path(*one, where, takes_addresses);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    for (const auto& one : *list) formats::require_plain_path(one, where, takes_addresses);
}

}  // namespace

// Where they are is known of a file alone: a checkpoint keeps no folder.
void Recipe::find_places() {
  const auto from = [this](const fs::path& folder, const std::string& option, std::string& place) {
    if (place.empty()) return;
    place = (folder / place).lexically_normal().string();
    resolved_.set_path(option, Node{place, {}});
  };
  const auto here = fs::current_path();
  const auto whole = [&](const std::string& option, std::string& place) {
    from(is_set(place_of(option)) ? here : fs::path(run.folder), option, place);
  };
  if (is_set(place_of("run.folder"))) run.folder = (here / run.folder).lexically_normal().string();
  resolved_.set_path("run.folder", Node{run.folder, {}});
  if (is_set(place_of("run.init_from"))) from(here, "run.init_from", run.init_from);
  if (adapter) whole("adapter.weights", adapter->weights);
  whole("loader.encoded", loader.encoded);
  for (auto& picture : validate.pictures) whole(picture.section + ".condition", picture.condition);
  for (auto* sections : {&encoders, &networks})
    for (auto& one : *sections) whole(one.section() + ".weights", one.weights);
}

void Recipe::see_from_here(OptionMap& given, const std::vector<OptionInfo>& declared) const {
  const auto here = fs::current_path();
  const auto see = [&](std::string& place) {
    if (!place.empty() && place.find("://") == std::string::npos) place = (here / place).lexically_normal().string();
  };
  for (const auto& info : declared) {
    const auto option = given.given.find(info.name);
    if (!info.is_place || option == given.given.end() || !is_set(option->second.where)) continue;
    auto& value = option->second.value;
    require_plain_places(value, option->second.where, true);
    if (run.folder.empty() || fs::path(run.folder) == here) continue;
    if (auto* one = std::get_if<std::string>(&value)) see(*one);
    if (auto* list = std::get_if<std::vector<std::string>>(&value)) std::for_each(list->begin(), list->end(), see);
  }
}

Recipe Recipe::read_text(const std::string& text, const std::string& name, const std::vector<std::string>& sets,
                         bool of_run) {
  Recipe recipe;
  recipe.name = name;
  recipe.of_run_ = of_run;
  Table tree = formats::parse_toml(text, name);
  move_guidance(tree, name);  // what is set stands for what the text says, in its words of today
  apply_sets(tree, sets, option_keys);
  recipe.interpret(std::move(tree));
  return recipe;
}

Recipe Recipe::parse(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  return read_text(text, name, sets, false);
}

Recipe Recipe::saved(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  return read_text(text, name, sets, true);
}

template <class Options>
void Recipe::read_section(const Section& section, Options& options) {
  auto given = section.options();
  read_options(given, [&] {
    OptionReader reader(given, effect_of_section(section.name));
    Options fresh;
    fresh.read(reader);
    refuse_elsewhere(given, reader);
    reader.finish();
    resolve(section.name, {}, reader.declared());
    options = std::move(fresh);
  });
}

template <class Options>
void Recipe::read_section(const Section& section, std::optional<Options>& options) {
  if (section.table) read_section(section, options.emplace());
}

void Recipe::read_section(const Section& section, ValidateOptions& options) {
  Table own = section.table ? *section.table : Table{};
  own.erase("picture");
  read_section<ValidateOptions>({&own, section.name, section.place}, options);
  const Node* list = section.table ? section.table->find("picture") : nullptr;
  const auto* none = list ? list->as<formats::Array>() : nullptr;
  if (!list || (none && none->empty())) return;
  auto given = options_of(own, section.name, section.place);
  given.given["picture"] = {std::string(), place(*list, section.place)};
  const auto leaves_out = [&](const std::string& name, const std::string& why) {
    const auto& where = given.given.at(name).where;
    if (!goes_along(given, name)) throw Error(ErrorKind::config, where, "validate." + name + " " + why, "leave it out");
    left_out.push_back(where + ": validate." + name + " " + why + "; it takes no effect");
  };
  if (options.grid_every == 0) return leaves_out("picture", "is of a sheet, and validate.grid_every is 0");
  if (options.grid != ValidateOptions().grid) leaves_out("grid", "is of a sheet that names no pictures");
  read_pictures(section, *list);
}

void Recipe::read_pictures(const Section& section, const Node& list) {
  if (!formats::is_list_of_tables(list))
    throw Error(ErrorKind::config, place(list, section.place), std::string("validate.picture is ") + list.type_name(),
                "expected the pictures of a sheet, each [[validate.picture]]");
  const auto& tables = *list.as<formats::Array>();
  resolved_.set_path("validate.picture", Node{formats::Array(tables.size(), Node{Table{}, {}}), {}});
  for (const auto& one : tables) {
    SheetPicture picture;
    picture.seed = static_cast<int64_t>(validate.pictures.size());
    picture.section = "validate.picture." + std::to_string(picture.seed);
    auto given = options_of(*one.as<Table>(), picture.section, place(one, section.place));
    if (const auto it = given.given.find("class"); it != given.given.end())
      if (const auto* number = std::get_if<int64_t>(&it->second.value)) it->second.value = std::to_string(*number);
    OptionReader reader(given, effect_of_section(section.name));
    picture.read(reader);
    reader.finish();
    resolve(picture.section, {}, reader.declared());
    validate.pictures.push_back(std::move(picture));
  }
}

void Recipe::read_section(const Section& section, RecordOptions& options) {
  const Table own = section.table ? without_notes(*section.table) : Table{};
  read_section<RecordOptions>({&own, section.name, section.place}, options);
}

void Recipe::read_section(const Section& section, PluginOptions& options) {
  Table own = section.table ? *section.table : Table{};
  own.erase("path");  // an empty list: see refuse_plugin_path
  read_section<PluginOptions>({&own, section.name, section.place}, options);
}

void Recipe::read_section(const Section& section, Component& component) {
  if (&component == &sampler) return read_sampler(section);
  if (&component == &optimizer) return read_optimizer(section);
  if (&component == &data) return read_data_parts(section);
  component = section.component();
}

// The host's part of [sampler]: what every sampler is given.
void Recipe::read_sampler(const Section& section) {
  sampler = section.component();
  OptionMap host{"sampler", sampler.options.where, {}};
  for (const auto& key : own_keys("sampler"))
    if (auto own = sampler.options.given.extract(key)) host.given.insert(std::move(own));
  read_options(host, [&] {
    OptionReader option(host, effect_of_section("sampler"));
    auto steps = sampler_steps;
    auto clip = sampler_clip;
    auto percentile = sampler_percentile;
    option("steps", steps, "steps from noise to data").between(1, most::kTimes);
    option("clip", clip,
           "what every estimate of the data is brought into: static: -1 ... 1; dynamic: each sample's own range, "
           "scaled to it (Imagen)")
        .one_of({"none", "static", "dynamic"});
    option("percentile", percentile, "clip = \"dynamic\": share of a sample's numbers that its range holds")
        .between(0.0, 1.0);
    option.only_if(clip == "dynamic", {"percentile"}, "is of clip = \"dynamic\"");
    if (sampler) resolve("sampler", sampler.plugin, option.declared());
    sampler_steps = steps, sampler_clip = clip, sampler_percentile = percentile;
  });
}

void Recipe::read_optimizer(const Section& section) {
  if (!section.table) return;
  Table own = *section.table;
  own.erase("group");
  const auto& where = section.place;
  optimizer = component_in(own, "optimizer", where);
  const Node* node = section.table->find("group");
  if (!node) return;
  const auto* groups = node->as<formats::Array>();
  if (!groups)
    throw Error(ErrorKind::config, place(*node, where), std::string("optimizer.group is ") + node->type_name(),
                "expected groups, each [[optimizer.group]] with match = \"*.bias\"");
  if (groups->empty()) return;
  resolved_.set_path("optimizer.group", Node{formats::Array(groups->size(), Node{Table{}, {}}), {}});
  for (const auto& group : *groups) {
    std::vector<OptionInfo> declared;
    const auto number = std::to_string(optimizer_groups.size());
    optimizer_groups.push_back(read_group(group, "optimizer.group." + number, optimizer, where, declared));
    resolve(optimizer_groups.back().section, {}, declared);
  }
}

void Recipe::read_data_parts(const Section& section) {
  if (!section.table) return;
  auto read = read_data(*section.table, section.place);
  data = std::move(read.component);
  data_parts = std::move(read.parts);
  if (data_parts.empty()) return;
  resolve("data", data.plugin, {});
  resolve_parts("data", data_parts);
}

void Recipe::resolve_parts(const std::string& section, const std::vector<DataPart>& parts) {
  resolved_.set_path(section + ".part", Node{formats::Array(parts.size(), Node{Table{}, {}}), {}});
  for (const auto& part : parts) {
    OptionReader option({}, effect_of_section(part.section));
    auto own = part;
    own.read(option);
    resolve(part.section, part.component.plugin, option.declared());
    if (!part.parts.empty()) resolve_parts(part.section, part.parts);
  }
}

void Recipe::read_section(const Section& section, std::vector<NetworkSection>& networks) {
  if (!section.table) return;
  for (const auto& entry : section.table->entries()) networks.push_back(read_network(section.name, entry));
}

// What the host does not know of [parallel] is for its strategies.
void Recipe::read_section(const Section& section, ParallelOptions& options) {
  const auto all = section.options();
  OptionReader reader(all);
  options.read(reader);
  options.given = all.given;
  resolve("parallel", {}, reader.declared());
}

void Recipe::interpret(Table tree) {
  expand_conditioning(tree, name);
  refuse_unknown_sections(tree, name);
  refuse_plugin_path(tree, name);
  move_guidance(tree, name);
  of_run_ = of_run_ || has_notes(tree);
  given_ = tree;
  for (const auto& entry : sections())
    std::visit([&](auto member) { read_section(section_in(tree, entry.name, name), this->*member); }, entry.member);
  if (!guidance) guidance = {"none", name, {"guidance", name, {}}};
  leave_no_cache();
  check_numerics(*this);
  check_audit(*this);
  for (auto& [section, component] : components()) {  // as given, until the plugin has told its defaults
    if (!*component) continue;
    std::vector<OptionInfo> given;
    for (const auto& [key, option] : component->options.given)
      given.push_back({key, {}, option.value, option.value, {}, true, effect_of_section(section)});
    resolve(section, component->plugin, given);
  }
}

// "none" takes away the one that a recipe has.
void Recipe::leave_no_cache() {
  if (cache.plugin != "none") return;
  if (const auto& given = cache.options.given; !given.empty())
    throw Error(ErrorKind::config, given.begin()->second.where,
                "cache." + given.begin()->first + " is given, and cache.plugin = \"none\"",
                "leave it out, or name a cache; see `ditto plugins list`");
  cache = {};
}

// What has a section of its own is a kernel plugin, what has a value an op.
void Recipe::read_section(const Section& section, std::map<std::string, GivenOption>& pinned) {
  if (!section.table) return;
  resolved_.set("kernels", Node{*section.table, {}});
  Table pins;
  for (const auto& entry : section.table->entries()) {
    const auto* options = entry.value.as<Table>();
    if (!options) {
      pins.entries().push_back(entry);
      continue;
    }
    const auto where = place(entry.value, name);
    const auto sets = kernel_sets(*this);
    if (std::find(sets.begin(), sets.end(), entry.key) == sets.end())
      throw Error(ErrorKind::config, where,
                  "[kernels." + entry.key + "] gives options to a kernel plugin that the recipe does not name",
                  "add it to plugins.kernels; a pin is kernels.OP = \"VARIANT\"");
    kernel_options[entry.key] = options_of(*options, "kernels." + entry.key, where);
  }
  pinned = options_of(pins, "kernels", name).given;
}

std::vector<std::pair<std::string, Component*>> Recipe::components() {
  std::vector<std::pair<std::string, Component*>> all;
  const auto add_component = [&](const std::string& name, Component& component) {
    if (&component != &data || data_parts.empty()) return void(all.emplace_back(name, &component));
    std::vector<DataPart*> sources;
    for (auto& part : data_parts) collect_sources(part, sources);
    for (auto* source : sources) all.emplace_back(source->section, &source->component);
  };
  for (const auto& entry : sections()) {
    if (const auto* member = std::get_if<Component Recipe::*>(&entry.member))
      add_component(std::string(entry.name), this->**member);
    if (const auto* member = std::get_if<std::vector<NetworkSection> Recipe::*>(&entry.member))
      for (auto& network : this->**member)
        if (network.component) all.emplace_back(network.section(), &network.component);
    if (entry.name == "optimizer")
      for (auto& group : optimizer_groups) all.emplace_back(group.section, &group.component);
  }
  return all;
}

void Recipe::resolve(const std::string& section, const std::string& plugin, const std::vector<OptionInfo>& declared) {
  if (!plugin.empty()) resolved_.set_path(section + ".plugin", Node{plugin, {}});
  for (const auto& info : declared) {
    const auto option = section + "." + info.name;
    if (info.given && info.is_place) require_plain_places(info.value, place_of(option), section != "run");
    if (info.noted_if_given && (!info.given || info.value == info.fallback)) continue;
    resolved_.set_path(option, node_of(info.value));
  }
  effects_.add(section, declared);
}

void Recipe::resolve(const AdapterOptions& complete) {
  adapter = complete;
  OptionReader reader(OptionMap{}, effect_of_section("adapter"));
  adapter->read(reader);
  resolve("adapter", {}, reader.declared());
}

void Recipe::resolve_bf16_in_fp32(std::vector<std::string> ops) {
  run.bf16_in_fp32 = std::move(ops);
  bf16_was_measured = true;
  resolved_.set_path("run.bf16_in_fp32", node_of(run.bf16_in_fp32));
}

void Recipe::resolve_memory_format(const std::string& found) {
  run.memory_format = found;
  memory_format_was_measured = true;
  resolved_.set_path("run.memory_format", node_of(run.memory_format));
}

std::string Recipe::place_of(std::string_view option) const {
  const auto* node = given_.find_path(option);
  return node ? place(*node, name) : name;
}

std::string transport_of(const Recipe& recipe) {
  if (!recipe.run.transport.empty()) return recipe.run.transport;
  return recipe.run.device == "cpu" ? "" : kCudaTransport;
}

std::string kind_of(const std::string& section) {
  const auto first = section.substr(0, section.find('.'));
  return first == "network" ? "model" : first;
}

std::string output_folder(const Recipe& recipe) {
  return recipe.run.output.empty() ? (fs::path("runs") / recipe.run.name).string() : recipe.run.output;
}

}  // namespace ditto
