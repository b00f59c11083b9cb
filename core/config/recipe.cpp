#include "core/config/recipe.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <ditto/error.h>
#include <ditto/sizes.h>

#include "core/config/include.h"

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

const std::vector<std::string> kSections{"run",       "model",       "scheduler", "sampler",  "objective",
                                         "optimizer", "lr_schedule", "ema",       "data",     "loader",
                                         "log",       "checkpoint",  "validate",  "parallel", "kernels",
                                         "encoder",   "plugins",     "record",    "guidance", "network"};

std::string place(const Node& node, const std::string& name) {
  const auto text = node.source.text();
  return text.empty() ? name : text;
}

// A TOML list as an option's value: whole numbers, numbers or strings.
OptionValue list_value(const formats::Array& list, const std::string& where) {
  const auto all = [&](auto test) { return std::all_of(list.begin(), list.end(), test); };
  if (all([](const Node& n) { return n.as<int64_t>() != nullptr; })) {
    std::vector<int64_t> values;
    for (const auto& n : list) values.push_back(*n.as<int64_t>());
    return values;
  }
  if (all([](const Node& n) { return n.as<int64_t>() || n.as<double>(); })) {
    std::vector<double> values;
    for (const auto& n : list)
      values.push_back(n.as<double>() ? *n.as<double>() : static_cast<double>(*n.as<int64_t>()));
    return values;
  }
  if (all([](const Node& n) { return n.as<std::string>() != nullptr; })) {
    std::vector<std::string> values;
    for (const auto& n : list) values.push_back(*n.as<std::string>());
    return values;
  }
  throw Error(ErrorKind::config, where, "a list of mixed types",
              "expected a list of integers, of numbers or of strings");
}

OptionMap options_of(const Table& table, const std::string& section, const std::string& where) {
  OptionMap map{section, where, {}};
  for (const auto& entry : table.entries()) {
    if (entry.key == "plugin") continue;
    const auto at = place(entry.value, where);
    if (entry.value.as<Table>())
      throw Error(ErrorKind::config, at, section + "." + entry.key + " is a table",
                  "expected a value; `ditto config show` lists the options");
    OptionValue value;
    if (const auto* v = entry.value.as<bool>()) value = *v;
    if (const auto* v = entry.value.as<int64_t>()) value = *v;
    if (const auto* v = entry.value.as<double>()) value = *v;
    if (const auto* v = entry.value.as<std::string>()) value = *v;
    if (const auto* v = entry.value.as<formats::Array>()) value = list_value(*v, at);
    map.given[entry.key] = {std::move(value), at};
  }
  return map;
}

Node node_of(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> Node {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
                      std::is_same_v<T, std::string>) {
          return Node{v, {}};
        } else {
          formats::Array list;
          for (const auto& one : v) list.push_back(Node{one, {}});
          return Node{list, {}};
        }
      },
      value);
}

const Table* section_of(const Table& tree, const std::string& name, const std::string& file) {
  const Node* node = tree.find_path(name);
  if (!node) return nullptr;
  if (const auto* table = node->as<Table>()) return table;
  throw Error(ErrorKind::config, place(*node, file), name + " is " + node->type_name(),
              "expected a section: [" + name + "]");
}

Component component_of(const Table& tree, const std::string& name, const std::string& file) {
  const Table* table = section_of(tree, name, file);
  if (!table) return {};
  const auto where = place(*tree.find_path(name), file);
  const Node* plugin = table->find("plugin");
  if (!plugin)
    throw Error(ErrorKind::config, where, "[" + name + "] names no plugin",
                "add plugin = \"…\"; see `ditto plugins list`");
  const auto* id = plugin->as<std::string>();
  if (!id || id->empty())
    throw Error(ErrorKind::config, place(*plugin, where), name + ".plugin is " + plugin->type_name(),
                "expected a plugin's id, as a string");
  return {*id, place(*plugin, where), options_of(*table, name, where)};
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

void flatten(const Table& table, const std::string& prefix, std::map<std::string, std::string>& into) {
  for (const auto& entry : table.entries()) {
    const std::string key = prefix.empty() ? entry.key : prefix + "." + entry.key;
    if (const auto* inner = entry.value.as<Table>()) {
      flatten(*inner, key, into);
    } else {
      into[key] = formats::render_toml_value(entry.value);
    }
  }
}

}  // namespace

Recipe Recipe::read(const std::string& path, const std::vector<std::string>& sets) {
  Recipe recipe;
  recipe.name = path;
  Table tree = read_with_includes(path);
  apply_sets(tree, sets);
  recipe.interpret(tree);
  if (recipe.run.folder.empty()) recipe.run.folder = fs::absolute(path).parent_path().lexically_normal().string();
  recipe.resolved_.set_path("run.folder", Node{recipe.run.folder, {}});
  // Where they are is known here alone: a checkpoint keeps no folder.
  for (auto& network : recipe.networks) {
    network.weights = (fs::path(recipe.run.folder) / network.weights).lexically_normal().string();
    recipe.resolved_.set_path("network." + network.name + ".weights", Node{network.weights, {}});
  }
  return recipe;
}

Recipe Recipe::parse(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  Recipe recipe;
  recipe.name = name;
  Table tree = formats::parse_toml(text, name);
  apply_sets(tree, sets);
  recipe.interpret(tree);
  return recipe;
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
  static const std::map<std::string, std::set<std::string>> all{
      {"run", names(defaults.run)},           {"lr_schedule", names(defaults.lr_schedule)},
      {"ema", names(defaults.ema)},           {"loader", names(defaults.loader)},
      {"parallel", names(defaults.parallel)}, {"checkpoint", names(defaults.checkpoint)},
      {"validate", names(defaults.validate)}, {"log", names(defaults.log)}};
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
  OptionReader reader(given);
  section.read(reader);
  refuse_elsewhere(given, reader);
  reader.finish();
  resolve(section_name, {}, reader.declared());
}

// The host's part of [sampler]: what every sampler is given.
void Recipe::read_sampler(const Table& tree) {
  sampler = component_of(tree, "sampler", name);
  OptionMap host{"sampler", sampler.options.where, {}};
  if (auto steps = sampler.options.given.extract("steps")) host.given.insert(std::move(steps));
  OptionReader option(host);
  option("steps", sampler_steps, "steps from noise to data").between(1, most::kTimes);
  if (sampler) resolve("sampler", sampler.plugin, option.declared());
}

// [guidance]; none: no guidance. Earlier recipes and checkpoints have it as two options of [sampler].
void Recipe::read_guidance(const Table& tree) {
  guidance = component_of(tree, "guidance", name);
  OptionMap options{"guidance", sampler.options.where, {}};
  for (const auto& [before, now] : {std::pair("guidance", "scale"), {"guidance_channels", "channels"}}) {
    auto given = sampler.options.given.extract(before);
    if (!given) continue;
    if (guidance)
      throw Error(ErrorKind::config, given.mapped().where,
                  "sampler." + std::string(before) + " stands beside [guidance]",
                  "leave it out: it is guidance." + std::string(now));
    options.given[now] = given.mapped();
  }
  if (!guidance)
    guidance = options.given.empty() ? Component{"none", name, {"guidance", name, {}}}
                                     : Component{"cfg", sampler.where, options};
}

void Recipe::read_encoders(const Table& tree) {
  const Table* all = section_of(tree, "encoder", name);
  if (!all) return;
  for (const auto& entry : all->entries()) {
    const auto section = "encoder." + entry.key;
    if (!entry.value.as<Table>())
      throw Error(ErrorKind::config, place(entry.value, name), section + " is " + entry.value.type_name(),
                  "expected a section for each encoder, [encoder.NAME], with plugin = \"…\"");
    encoders.emplace_back(section, component_of(tree, section, name));
  }
}

void Recipe::read_networks(const Table& tree) {
  const Table* all = section_of(tree, "network", name);
  if (!all) return;
  for (const auto& entry : all->entries()) {
    const auto section = "network." + entry.key;
    const auto where = place(entry.value, name);
    const auto* given = entry.value.as<Table>();
    if (!given)
      throw Error(ErrorKind::config, where, section + " is " + entry.value.type_name(),
                  "expected a section for each network, [network.NAME], with weights = \"…\"");
    Table table = *given;
    NetworkSection network{entry.key, {}, {}};
    if (const Node* axes = table.find("parallel"); axes && axes->as<Table>()) {
      for (const auto& [axis, option] : options_of(*axes->as<Table>(), section + ".parallel", where).given) {
        const auto* degree = std::get_if<int64_t>(&option.value);
        if (!degree || *degree != 1)
          throw Error(ErrorKind::config, option.where, section + ".parallel." + axis + " = " + to_text(option.value),
                      "1: it is not cut along this axis; axes that are left out cut it as the run's model");
        network.parallel[axis] = 1;
      }
      table.erase("parallel");
    }
    const Node* plugin = table.find("plugin");
    auto options = options_of(table, section, where);
    OptionMap host{section, where, {}};
    for (const char* key : {"weights", "which", "precision"})
      if (auto one = options.given.extract(key)) host.given.insert(std::move(one));
    OptionReader option(host);
    option("weights", network.weights, "a run, its checkpoints, or a checkpoint; relative to the recipe's folder");
    option("which", network.which, "of its weights: ema (where there is one) or weights").one_of({"ema", "weights"});
    option("precision", network.precision, "that it computes in; empty: the run's")
        .one_of({"", "fp32", "bf16", "fp16", "fp64"});
    if (network.weights.empty())
      throw Error(ErrorKind::config, where, "[" + section + "] names no weights",
                  "add weights = \"…\": a run, or a checkpoint");
    resolve(section, plugin ? component_of(tree, section, name).plugin : std::string(), option.declared());
    for (const auto& [axis, degree] : network.parallel)
      resolved_.set_path(section + ".parallel." + axis, Node{degree, {}});
    network.component = {plugin ? component_of(tree, section, name).plugin : std::string(), where, std::move(options)};
    if (!plugin && !network.component.options.given.empty())
      throw Error(ErrorKind::config, network.component.options.given.begin()->second.where,
                  section + "." + network.component.options.given.begin()->first +
                      " is an option of a model, and no plugin is named",
                  "leave it out: the model is that of the weights; or add plugin = \"…\"");
    networks.push_back(std::move(network));
  }
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

void Recipe::interpret(const Table& tree) {
  refuse_unknown_sections(tree, name);
  refuse_plugin_path(tree, name);
  read_section(tree, "run", run);
  for (auto& [section, component] : components())
    if (section != "sampler" && section != "guidance") *component = component_of(tree, section, name);
  read_encoders(tree);
  read_sampler(tree);
  read_guidance(tree);
  read_networks(tree);
  read_section(tree, "lr_schedule", lr_schedule);
  read_section(tree, "ema", ema);
  read_section(tree, "loader", loader);
  read_parallel(tree);
  read_section(tree, "checkpoint", checkpoint);
  read_section(tree, "validate", validate);
  read_section(tree, "log", log);
  read_section(tree, "plugins", plugins, {"path"});
  read_kernels(tree);
  for (auto& [section, component] : components()) {  // as given, until the plugin has told its defaults
    if (!*component) continue;
    std::vector<OptionInfo> given;
    for (const auto& [key, option] : component->options.given)
      given.push_back({key, {}, option.value, option.value, {}, true});
    resolve(section, component->plugin, given);
  }
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
    if (std::find(plugins.kernels.begin(), plugins.kernels.end(), entry.key) == plugins.kernels.end())
      throw Error(ErrorKind::config, where,
                  "[kernels." + entry.key + "] gives options to a kernel plugin that the recipe does not name",
                  "add it to plugins.kernels; a pin is kernels.OP = \"VARIANT\"");
    kernel_options[entry.key] = options_of(*options, "kernels." + entry.key, where);
  }
  kernels = options_of(pins, "kernels", name).given;
}

std::vector<std::pair<std::string, Component*>> Recipe::components() {
  std::vector<std::pair<std::string, Component*>> all{
      {"model", &model},         {"scheduler", &scheduler}, {"sampler", &sampler}, {"guidance", &guidance},
      {"objective", &objective}, {"optimizer", &optimizer}, {"data", &data}};
  for (auto& [section, component] : encoders) all.emplace_back(section, &component);
  for (auto& network : networks)
    if (network.component) all.emplace_back("network." + network.name, &network.component);
  return all;
}

void Recipe::resolve(const std::string& section, const std::string& plugin, const std::vector<OptionInfo>& declared) {
  if (!plugin.empty()) resolved_.set_path(section + ".plugin", Node{plugin, {}});
  for (const auto& info : declared) resolved_.set_path(section + "." + info.name, node_of(info.value));
}

std::string output_folder(const Recipe& recipe) {
  return recipe.run.output.empty() ? (fs::path("runs") / recipe.run.name).string() : recipe.run.output;
}

std::map<std::string, std::string> flat(const Table& table) {
  std::map<std::string, std::string> values;
  flatten(table, "", values);
  return values;
}

std::vector<Difference> differences(const Table& before, const Table& after) {
  const auto a = flat(before), b = flat(after);
  std::vector<Difference> list;
  for (const auto& [key, value] : a) {
    const auto it = b.find(key);
    if (it == b.end())
      list.push_back({key, value, "(none)"});
    else if (it->second != value)
      list.push_back({key, value, it->second});
  }
  for (const auto& [key, value] : b)
    if (!a.count(key)) list.push_back({key, "(none)", value});
  return list;
}

}  // namespace ditto
