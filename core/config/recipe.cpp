#include "core/config/recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <ditto/error.h>
#include <ditto/sizes.h>

#include "core/config/include.h"
#include "core/config/numerics.h"
#include "core/config/section.h"

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

const std::vector<std::string> kSections{"run",         "model",    "scheduler", "sampler", "objective", "optimizer",
                                         "lr_schedule", "ema",      "data",      "loader",  "log",       "checkpoint",
                                         "validate",    "parallel", "kernels",   "batch",   "encoder",   "plugins",
                                         "record",      "guidance", "cache",     "network", "adapter",   "tread"};

const Table* section_of(const Table& tree, const std::string& name, const std::string& file) {
  const Node* node = tree.find_path(name);
  if (!node) return nullptr;
  if (const auto* table = node->as<Table>()) return table;
  throw Error(ErrorKind::config, place(*node, file), name + " is " + node->type_name(),
              "expected a section: [" + name + "]");
}

Component component_of(const Table& tree, const std::string& name, const std::string& file) {
  const Table* table = section_of(tree, name, file);
  return table ? component_in(*table, name, place(*tree.find_path(name), file)) : Component{};
}

void refuse_unknown_sections(const Table& tree, const std::string& file) {
  for (const auto& entry : tree.entries()) {
    if (std::find(kSections.begin(), kSections.end(), entry.key) != kSections.end()) continue;
    const auto near = nearest(entry.key, kSections);
    std::string all;
    for (const auto& one : kSections) all += (all.empty() ? "" : ", ") + one;
    const auto at = entry.key_source.text().empty() ? place(entry.value, file) : entry.key_source.text();
    throw Error(ErrorKind::config, at, "a recipe has no section \"" + entry.key + "\"",
                near.empty() ? "it has: " + all : "did you mean [" + near + "]?");
  }
}

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
  guidance.set("plugin", {std::string("cfg"), sampler->source});
  tree.set("guidance", {std::move(guidance), sampler->source});
}

// Models of earlier recipes that are plugins of their own today.
void refuse_other_model(const Table& tree, const std::string& file) {
  constexpr struct {
    std::string_view plugin, option, value, now;  // no value: any
  } kOthers[] = {{"mmdit", "rotary", {}, "flux"},
                 {"mmdit", "single_depth", {}, "flux"},
                 {"mmdit", "guidance_embed", {}, "flux"},
                 {"mmdit", "preset", "Flux.1-dev", "flux"},
                 {"mmdit", "preset", "Flux.1-schnell", "flux"},
                 {"st_dit", "preset", "Latte-1", "latte"},
                 {"st_dit", "preset", "Latte-XL/2", "latte"}};
  const auto text_at = [](const Table& table, std::string_view key) {
    const Node* node = table.find(key);
    const auto* text = node ? node->as<std::string>() : nullptr;
    return text ? *text : std::string();
  };
  const Table* model = section_of(tree, "model", file);
  for (const auto& [plugin, option, value, now] : kOthers)
    if (model && text_at(*model, "plugin") == plugin && model->find(option) &&
        (value.empty() || text_at(*model, option) == value))
      throw Error(ErrorKind::config, place(*model->find(option), file),
                  "model." + std::string(option) + (value.empty() ? "" : " = \"" + std::string(value) + "\"") +
                      " is not " + std::string(plugin) + "'s",
                  "set model.plugin = \"" + std::string(now) + "\", which it is an option of");
}

}  // namespace

Recipe Recipe::read(const std::string& path, const std::vector<std::string>& sets) {
  Recipe recipe;
  recipe.name = path;
  Table tree = read_with_includes(path);
  apply_sets(tree, sets);
  recipe.interpret(std::move(tree));
  if (recipe.run.folder.empty()) recipe.run.folder = fs::absolute(path).parent_path().lexically_normal().string();
  recipe.resolved_.set_path("run.folder", Node{recipe.run.folder, {}});
  if (recipe.adapter && !recipe.adapter->weights.empty()) {
    recipe.adapter->weights = (fs::path(recipe.run.folder) / recipe.adapter->weights).lexically_normal().string();
    recipe.resolved_.set_path("adapter.weights", Node{recipe.adapter->weights, {}});
  }
  // Where they are is known here alone: a checkpoint keeps no folder.
  for (auto* sections : {&recipe.encoders, &recipe.networks})
    for (auto& one : *sections) {
      if (one.weights.empty()) continue;
      one.weights = (fs::path(recipe.run.folder) / one.weights).lexically_normal().string();
      recipe.resolved_.set_path(one.section() + ".weights", Node{one.weights, {}});
    }
  return recipe;
}

Recipe Recipe::read_text(const std::string& text, const std::string& name, const std::vector<std::string>& sets,
                         bool of_run) {
  Recipe recipe;
  recipe.name = name;
  recipe.of_run_ = of_run;
  Table tree = formats::parse_toml(text, name);
  move_guidance(tree, name);  // what is set stands for what the text says, in its words of today
  apply_sets(tree, sets);
  recipe.interpret(std::move(tree));
  return recipe;
}

Recipe Recipe::parse(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  return read_text(text, name, sets, false);
}

Recipe Recipe::saved(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  return read_text(text, name, sets, true);
}

// An option that another of the host's sections has is not looked for among names that merely look alike.
void Recipe::refuse_elsewhere(const OptionMap& given, const OptionReader& own) const {
  const Recipe defaults;
  const auto names = [](const auto& section) {
    OptionReader reader(OptionMap{});
    auto copy = section;
    copy.read(reader);
    std::set<std::string> found;
    for (const auto& info : reader.declared()) found.insert(info.name);
    return found;
  };
  static const std::map<std::string, std::set<std::string>> all{{"run", names(defaults.run)},
                                                                {"lr_schedule", names(defaults.lr_schedule)},
                                                                {"ema", names(defaults.ema)},
                                                                {"loader", names(defaults.loader)},
                                                                {"batch", names(defaults.batch)},
                                                                {"parallel", names(defaults.parallel)},
                                                                {"checkpoint", names(defaults.checkpoint)},
                                                                {"validate", names(defaults.validate)},
                                                                {"log", names(defaults.log)},
                                                                {"record", names(defaults.record)}};
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

template <class Section>
void Recipe::read_section(const Table& tree, const std::string& section_name, Section& section,
                          const std::vector<std::string>& without) {
  const Table* table = section_of(tree, section_name, name);
  const auto where = table ? place(*tree.find(section_name), name) : name;
  auto given = table ? options_of(*table, section_name, where) : OptionMap{section_name, where, {}};
  for (const auto& key : without) given.given.erase(key);
  read_options(given, [&] {
    OptionReader reader(given, effect_of_section(section_name));
    Section fresh;
    fresh.read(reader);
    refuse_elsewhere(given, reader);
    reader.finish();
    resolve(section_name, {}, reader.declared());
    section = std::move(fresh);
  });
}

// The host's part of [sampler]: what every sampler is given.
void Recipe::read_sampler(const Table& tree) {
  sampler = component_of(tree, "sampler", name);
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

void Recipe::read_optimizer(const Table& tree) {
  const Table* section = section_of(tree, "optimizer", name);
  if (!section) return;
  Table own = *section;
  own.erase("group");
  const auto where = place(*tree.find("optimizer"), name);
  optimizer = component_in(own, "optimizer", where);
  const Node* node = section->find("group");
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

void Recipe::read_data_parts(const Table& tree) {
  const Table* section = section_of(tree, "data", name);
  if (!section) return;
  auto read = read_data(*section, place(*tree.find("data"), name));
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

std::vector<NetworkSection> Recipe::read_networks(const Table& tree, const std::string& kind) {
  std::vector<NetworkSection> sections;
  if (const Table* all = section_of(tree, kind, name))
    for (const auto& entry : all->entries()) sections.push_back(read_network(kind, entry));
  return sections;
}

// What the host does not know of [parallel] is for its strategies.
void Recipe::read_parallel(const Table& tree) {
  const Table* table = section_of(tree, "parallel", name);
  const auto where = table ? place(*tree.find("parallel"), name) : name;
  const auto all = table ? options_of(*table, "parallel", where) : OptionMap{"parallel", where, {}};
  OptionReader reader(all);
  parallel.read(reader);
  parallel.given = all.given;
  resolve("parallel", {}, reader.declared());
}

void Recipe::interpret(Table tree) {
  refuse_unknown_sections(tree, name);
  refuse_plugin_path(tree, name);
  move_guidance(tree, name);
  refuse_other_model(tree, name);
  of_run_ = of_run_ || has_notes(tree);
  read_section(tree, "run", run);
  for (auto& [section, component] : components())
    if (section != "sampler" && section != "optimizer" && section != "data")
      *component = component_of(tree, section, name);
  encoders = read_networks(tree, "encoder");
  read_sampler(tree);
  read_optimizer(tree);
  read_data_parts(tree);
  if (!guidance) guidance = {"none", name, {"guidance", name, {}}};
  leave_no_cache();
  networks = read_networks(tree, "network");
  read_section(tree, "lr_schedule", lr_schedule);
  read_section(tree, "ema", ema);
  read_section(tree, "loader", loader);
  read_section(tree, "batch", batch);
  if (tree.find("adapter")) read_section(tree, "adapter", adapter.emplace());
  if (tree.find("tread")) read_section(tree, "tread", tread.emplace());
  read_parallel(tree);
  read_section(tree, "checkpoint", checkpoint);
  read_section(tree, "validate", validate);
  read_section(tree, "log", log);
  read_section(record_without_notes(tree), "record", record);
  read_section(tree, "plugins", plugins, {"path"});
  read_kernels(tree);
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
void Recipe::read_kernels(const Table& tree) {
  const Table* all = section_of(tree, "kernels", name);
  if (!all) return;
  resolved_.set("kernels", Node{*all, {}});
  Table pins;
  for (const auto& entry : all->entries()) {
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
  kernels = options_of(pins, "kernels", name).given;
}

std::vector<std::pair<std::string, Component*>> Recipe::components() {
  std::vector<std::pair<std::string, Component*>> all{
      {"model", &model}, {"scheduler", &scheduler}, {"sampler", &sampler},    {"guidance", &guidance},
      {"cache", &cache}, {"objective", &objective}, {"optimizer", &optimizer}};
  if (data_parts.empty()) all.emplace_back("data", &data);
  std::vector<DataPart*> sources;
  for (auto& part : data_parts) collect_sources(part, sources);
  for (auto* source : sources) all.emplace_back(source->section, &source->component);
  for (auto& group : optimizer_groups) all.emplace_back(group.section, &group.component);
  for (auto& encoder : encoders) all.emplace_back(encoder.section(), &encoder.component);
  for (auto& network : networks)
    if (network.component) all.emplace_back(network.section(), &network.component);
  return all;
}

void Recipe::resolve(const std::string& section, const std::string& plugin, const std::vector<OptionInfo>& declared) {
  if (!plugin.empty()) resolved_.set_path(section + ".plugin", Node{plugin, {}});
  for (const auto& info : declared) resolved_.set_path(section + "." + info.name, node_of(info.value));
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

std::string output_folder(const Recipe& recipe) {
  return recipe.run.output.empty() ? (fs::path("runs") / recipe.run.name).string() : recipe.run.output;
}

}  // namespace ditto
