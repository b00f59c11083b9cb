// [network.NAME] and [encoder.NAME]: what the host reads of them.
#include <ditto/error.h>

#include "core/config/include.h"
#include "core/config/recipe.h"

namespace ditto {

using formats::Node;
using formats::Table;

namespace {

// `parallel = { tensor = 1 }` of a network.
std::map<std::string, int64_t> uncut_axes(const Node& node, const std::string& section, const std::string& where) {
  const auto* axes = node.as<Table>();
  if (!axes)
    throw Error(ErrorKind::config, place(node, where), section + ".parallel is " + node.type_name(),
                "expected axes along which it is not cut, as { tensor = 1 }");
  std::map<std::string, int64_t> uncut;
  for (const auto& [axis, option] : options_of(*axes, section + ".parallel", where).given) {
    const auto* degree = std::get_if<int64_t>(&option.value);
    if (!degree || *degree != 1)
      throw Error(ErrorKind::config, option.where, section + ".parallel." + axis + " = " + to_text(option.value),
                  "1: it is not cut along this axis; axes that are left out cut it as the run's model");
    uncut[axis] = 1;
  }
  return uncut;
}

}  // namespace

// [encoder.NAME] and [network.NAME]: what the host reads of a section, and the rest for its plugin.
NetworkSection Recipe::read_network(const std::string& kind, const formats::Entry& entry) {
  NetworkSection network;
  network.kind = kind;
  network.name = entry.key;
  const bool is_encoder = kind == "encoder";
  const auto section = network.section(), where = place(entry.value, name);
  const auto* given = entry.value.as<Table>();
  if (!given)
    throw Error(ErrorKind::config, where, section + " is " + entry.value.type_name(),
                "expected a section for each " + kind + ", [" + kind + ".NAME], with " +
                    (is_encoder ? "plugin = \"…\"" : "weights = \"…\""));
  Table table = *given;
  if (const Node* axes = table.find("parallel")) {
    network.parallel = uncut_axes(*axes, section, where);
    table.erase("parallel");
  }
  if (is_encoder || table.find("plugin"))
    network.component = component_in(table, section, where);
  else
    network.component.options = options_of(table, section, where);
  if (!is_encoder) network.component.where = where;
  auto& options = network.component.options.given;
  OptionMap host{section, where, {}};
  for (const auto& key : own_keys(section))
    if (auto one = options.extract(key)) host.given.insert(std::move(one));
  read_own_keys(network, host);
  if (!network.component && !options.empty())
    throw Error(ErrorKind::config, options.begin()->second.where,
                section + "." + options.begin()->first + " is an option of a model, and no plugin is named",
                "leave it out: the model is that of the weights; or add plugin = \"…\"");
  return network;
}

void Recipe::read_own_keys(NetworkSection& network, const OptionMap& given) {
  const bool is_encoder = network.kind == "encoder";
  const auto section = network.section();
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::config, given.where, what, remedy);
  };
  OptionReader option(given);
  if (!is_encoder)
    option("trains", network.trains, "it learns with the run's model, from weights or from its own draws; else frozen");
  // Which weights they are their fingerprint says, not where they lie.
  option(
      "weights", network.weights,
      "a run, its checkpoints, or a checkpoint; with a format, and of an encoder without one too, a file or folder of "
      "another project's; relative to the recipe's folder")
      .changes(Effect::nothing)
      .place();
  option("format", network.format, "how another project's file names them: diffusers, facebook-dit, …")
      .changes(Effect::nothing);
  option("which", network.which, "of its weights: ema (where there is one) or weights").one_of({"ema", "weights"});
  option("precision", network.precision, "that it computes in; empty: the run's")
      .one_of({"", "fp32", "bf16", "fp16", "fp64"});
  if (network.weights.empty() && !network.trains && !is_encoder)
    refuse("[" + section + "] names no weights",
           "add weights = \"…\": a run, or a checkpoint; or trains = true, with a plugin");
  if (network.trains && !network.component)
    refuse("[" + section + "] trains, and names no plugin",
           "add plugin = \"…\" and its options; weights, where there are any, are only what it starts from");
  if (network.trains && !network.format.empty())
    refuse("[" + section + "] trains, and its weights are in the format " + network.format,
           "make a checkpoint of them with `ditto checkpoint import`, and name that");
  if (network.trains && !network.precision.empty() && network.precision != run.precision)
    refuse(section + ".precision = \"" + network.precision + "\", and it trains in a run of " + run.precision,
           "leave it out: what one optimizer updates, and one loss scale keeps finite, is of one precision");
  option.only_if(!network.weights.empty(), {"format", "which"}, "is of weights, and none are named");
  auto declared = option.declared();
  // What is not given is not noted where earlier checkpoints do not know of it.
  std::erase_if(declared, [&](const OptionInfo& info) { return !info.given && (is_encoder || info.name == "format"); });
  resolve(section, is_encoder ? std::string() : network.component.plugin, declared);
  effects_.add(section, option.declared());
  for (const auto& [axis, degree] : network.parallel)
    resolved_.set_path(section + ".parallel." + axis, Node{degree, {}});
}

}  // namespace ditto
