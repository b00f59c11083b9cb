#include "core/network/adapter.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/checkpoint/manifest.h"
#include "core/config/name_patterns.h"
#include "core/console/streams.h"
#include "core/exchange/peft.h"
#include "core/formats/file.h"
#include "core/ranks/launch.h"

namespace ditto {

namespace {

using checkpoint::Peft;

constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";
constexpr const char *kBase = "adapter.base", *kWhich = "adapter.base_weights",
                     *kFingerprint = "adapter.base_fingerprint";
constexpr int64_t kRank = 8;
constexpr size_t kNamesShown = 12;

// Those that may be cut, which are those that are more than a bag of others.
std::map<std::string, CutLayer*> layers_of(const Units& model) {
  std::map<std::string, CutLayer*> layers;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto* layer = dynamic_cast<CutLayer*>(item.value().get())) layers[item.key()] = layer;
  return layers;
}

std::set<std::string> adapted_layers(const Units& model) {
  std::set<std::string> layers;
  for (const auto& item : model.named_parameters())
    if (is_of_adapter(item.key())) layers.insert(item.key().substr(0, item.key().size() - std::string_view(kA).size()));
  return layers;
}

[[noreturn]] void refuse(const std::string& pattern, const std::map<std::string, CutLayer*>& layers, bool some_match) {
  std::set<std::string> kinds;
  for (const auto& [name, layer] : layers) kinds.insert(as_pattern(name));
  const std::vector<std::string> list(kinds.begin(), kinds.end());
  std::string all;
  for (size_t i = 0; i < std::min(list.size(), kNamesShown); ++i) all += (i == 0 ? "" : ", ") + list[i];
  if (list.size() > kNamesShown) all += ", …";
  const auto near = nearest(pattern, list);
  throw Error(
      ErrorKind::config, "adapter.layers",
      "\"" + pattern + "\" matches " +
          (some_match ? "only layers that have no place for an adapter's term" : "no layer of the model"),
      (near.empty() || near == pattern ? "" : "the nearest name is \"" + near + "\"; ") + "its layers are " + all);
}

void take_over(AdapterOptions& options, int64_t rank, double alpha, const std::vector<std::string>& layers) {
  if (options.rank == 0) options.rank = rank;
  if (options.alpha == 0) options.alpha = alpha * static_cast<double>(options.rank) / static_cast<double>(rank);
  if (options.layers.empty()) options.layers = layers;
}

// The checkpoint of an adapter's run.
std::string run_of(const std::string& weights) {
  checkpoint::refuse_one_file(weights);
  return *checkpoint::resolve(weights).path;
}

// The recipe of an adapter's run has all of them.
AdapterOptions options_of_run(const std::string& path) {
  const auto info = checkpoint::describe(path);
  const auto recipe = Recipe::saved(info.recipe_toml, path + "/recipe.toml");
  if (!recipe.adapter || !adapter_base(info.extra))
    throw Error(
        ErrorKind::checkpoint, path, "is of a whole model, and adapter.weights names an adapter",
        "name the run of an adapter, or a folder of peft's; what a run starts from as a whole is run.init_from");
  return *recipe.adapter;
}

AdapterOptions complete(AdapterOptions options, const Units& model) {
  if (options.rank > 0 && options.alpha > 0 && !options.layers.empty()) return options;
  if (!options.weights.empty()) {
    if (checkpoint::is_peft(options.weights)) {
      const Peft theirs(model, options.format, options.weights);
      take_over(options, theirs.rank(), theirs.alpha(), theirs.layers());
    } else {
      const auto theirs = options_of_run(run_of(options.weights));
      take_over(options, theirs.rank, theirs.alpha, theirs.layers);
    }
  }
  if (options.layers.empty())
    throw Error(ErrorKind::config, "adapter.layers", "names no layer",
                "add patterns of names, as layers = [\"blocks.*\"], or weights = \"…\" of an adapter");
  if (options.rank == 0) options.rank = kRank;
  if (options.alpha == 0) options.alpha = static_cast<double>(options.rank);
  return options;
}

Layout part_of(const Layout& layout, bool adapter) {
  Layout part;
  for (const auto& entry : layout.entries)
    if (is_of_adapter(entry.name) == adapter) part.entries.push_back(entry);
  return part;
}

}  // namespace

AdapterOptions adapt(Units& model, AdapterOptions given) {
  auto options = complete(std::move(given), model);
  const auto layers = layers_of(model);
  std::set<std::string> adapted;
  for (const auto& pattern : options.layers) {
    bool some_match = false, some_fit = false;
    for (const auto& [name, layer] : layers) {
      if (!matches(pattern, name)) continue;
      some_match = true;
      if (adapted.count(name) || layer->adapt({options.rank, options.alpha})) {
        adapted.insert(name);
        some_fit = true;
      }
    }
    if (!some_fit) refuse(pattern, layers, some_match);
  }
  return options;
}

void merge_adapter(Units& model) {
  for (const auto& [name, layer] : layers_of(model)) layer->merge();
  for (const auto& name : adapted_layers(model))
    throw Error(ErrorKind::plugin, "the layer \"" + name + "\"",
                "keeps its adapter's term where it is to be merged: without it the weights are another model's",
                "give the layer's class a merge() that makes the term a part of its weight");
}

bool is_of_adapter(const std::string& parameter) { return parameter.ends_with(kA) || parameter.ends_with(kB); }

Layout adapter_of(const Layout& layout) { return part_of(layout, true); }
Layout base_of(const Layout& layout) { return part_of(layout, false); }

void load_adapter(const AdapterOptions& options, const Units& model, const Layout& layout, checkpoint::Which which) {
  auto own = adapter_of(layout);
  if (!checkpoint::is_peft(options.weights)) {
    const auto path = run_of(options.weights);
    options_of_run(path);
    checkpoint::load_weights(path, own, which);
    return;
  }
  if (const auto reading = checkpoint::reading_of_peft(options.weights); !reading.empty() && rank_info().rank == 0)
    report::tell("[adapter] " + reading);
  const Peft theirs(model, options.format, options.weights);
  const auto here = adapted_layers(model);
  const std::set<std::string> there(theirs.layers().begin(), theirs.layers().end());
  for (const auto& [some, others, what] : {std::tuple(&there, &here, "adapts \"{}\", which [adapter] does not"),
                                           std::tuple(&here, &there, "does not adapt \"{}\", which [adapter] does")})
    for (const auto& name : *some)
      if (!others->count(name)) {
        std::string text = what;
        throw Error(ErrorKind::checkpoint, options.weights, text.replace(text.find("{}"), 2, name),
                    "leave adapter.layers out: they are those of the weights");
      }
  theirs.read_into(own, options.rank, options.alpha / static_cast<double>(options.rank));
}

std::string fingerprint_of_adapter(const std::string& weights) {
  return checkpoint::is_peft(weights) ? checkpoint::fingerprint_of_peft(weights)
                                      : adapter_base(run_of(weights), "").fingerprint;
}

AdapterBase adapter_base(const std::string& path, const std::string& which) {
  const auto manifest = formats::read_file(path + "/" + checkpoint::kManifestFile, ErrorKind::checkpoint);
  return {std::filesystem::absolute(path).lexically_normal().string(), which,
          checkpoint::checksum(std::as_bytes(std::span(manifest)))};
}

std::map<std::string, std::string> notes_of(const AdapterBase& base) {
  return {{kBase, base.path}, {kWhich, base.which}, {kFingerprint, base.fingerprint}};
}

std::optional<AdapterBase> adapter_base(const std::map<std::string, std::string>& notes) {
  const auto note = [&](const char* name) {
    const auto found = notes.find(name);
    return found == notes.end() ? std::string() : found->second;
  };
  if (note(kBase).empty()) return std::nullopt;
  return AdapterBase{note(kBase), note(kWhich), note(kFingerprint)};
}

void require(const AdapterBase& base, const std::string& where) {
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(base.path + "/" + checkpoint::kManifestFile, ignored);
  if (is_there && adapter_base(base.path, base.which).fingerprint == base.fingerprint) return;
  throw Error(ErrorKind::checkpoint, where,
              "is an adapter alone, and the checkpoint it was learned on, " + base.path +
                  (is_there ? ", is another one now" : ", is not there"),
              "bring that back, or say where it lies: --set run.init_from=CHECKPOINT");
}

}  // namespace ditto
