// A recipe: a TOML file, its includes and the command line's --set, as typed sections.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/options.h>

#include "core/config/data_options.h"
#include "core/config/data_parts.h"
#include "core/config/idle_options.h"
#include "core/config/optimizer_group.h"
#include "core/config/option_effects.h"
#include "core/config/run_options.h"
#include "core/config/section.h"
#include "core/formats/text/toml.h"

namespace ditto {

// [network.NAME]: another network of the run. [encoder.NAME]: an encoder, a frozen network where it has parameters.
struct NetworkSection {
  std::string kind, name;  // "network" or "encoder"
  Component component;     // of a network without a plugin: model and options are those that the weights are of
  bool trains = false;     // it learns with the run's model, and names a plugin; else it is frozen, and names weights
  // A run, its checkpoints, or a checkpoint. With a format, and an encoder's without one too: a file or folder of
  // another project's. Relative to the recipe's folder.
  std::string weights, format;
  std::string which = "ema", precision;     // of the weights; empty: the run's
  std::map<std::string, int64_t> parallel;  // axes along which it is not cut: 1

  std::string section() const { return kind + "." + name; }
};

struct Section;

class Recipe {
 public:
  // Reads the file `path`, or of a run's folder its run.toml, and what it includes (the including file wins), then
  // applies `sets` ("a.b=c", later ones win). A run.toml in a run's folder is of that run, unless `sets` name another
  // one. Throws Error(config) with file, line and column.
  static Recipe read(const std::string& path, const std::vector<std::string>& sets = {});
  static Recipe parse(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});
  // Of a run that was begun (a checkpoint's recipe): options that do nothing where they stand, which earlier versions
  // took, are left out. So are those of a run.toml.
  static Recipe saved(const std::string& text, const std::string& name, const std::vector<std::string>& sets = {});

  std::string name;  // the file, for messages
  RunOptions run;
  LrScheduleOptions lr_schedule;
  EmaOptions ema;
  LoaderOptions loader;
  BatchOptions batch;
  std::optional<AdapterOptions> adapter;
  std::optional<TreadOptions> tread;
  ParallelOptions parallel;
  CheckpointOptions checkpoint;
  ValidateOptions validate;
  report::LogOptions log;
  RecordOptions record;
  PluginOptions plugins;
  std::map<std::string, GivenOption> kernels;       // pins: op -> variant
  std::map<std::string, OptionMap> kernel_options;  // [kernels.SET], by plugin
  Component model, scheduler, sampler, guidance, cache, objective, optimizer, data;
  std::vector<DataPart> data_parts;              // of a blend, which data then names
  std::vector<OptimizerGroup> optimizer_groups;  // the first that matches a parameter takes it
  std::vector<NetworkSection> encoders;          // in the order of the recipe
  std::vector<NetworkSection> networks;
  // The sampler's options that belong to the host.
  int64_t sampler_steps = 50;
  std::string sampler_clip = "none";
  double sampler_percentile = 0.995;

  // A sentence for each option that goes along with one that was overridden.
  std::vector<std::string> left_out;

  // Every component of the recipe with its section's name.
  std::vector<std::pair<std::string, Component*>> components();
  // The recipe with every default written out: the host's sections, and components' options once `resolve` was called
  // for them.
  const formats::Table& resolved() const { return resolved_; }
  void resolve(const std::string& section, const std::string& plugin, const std::vector<OptionInfo>& declared);
  void resolve(const AdapterOptions& complete);
  // run.bf16_in_fp32, where it was left to be measured.
  void resolve_bf16_in_fp32(std::vector<std::string> ops);
  bool bf16_was_measured = false;
  void resolve_memory_format(const std::string& found);  // run.memory_format, likewise
  bool memory_format_was_measured = false;
  // read(), which reads `given`, without the options in there that were left idle by others that were overridden.
  template <class Read>
  auto read_options(OptionMap& given, const Read& read) {
    const auto leave_out = [&](const IdleOption& idle) {
      if (!goes_along(given, idle.option())) return false;
      if (!given.section.starts_with("optimizer.group.")) left_out.emplace_back(idle.what());  // there it is inherited
      return true;
    };
    return read_without_idle(given, leave_out, read);
  }
  // Of all options that were declared so far.
  const OptionEffects& effects() const { return effects_; }
  // Places that the command line names are seen from where it was typed, those that the recipe names from its folder:
  // of a plugin's options that were set, those that are `declared` as places are made whole.
  void see_from_here(OptionMap& given, const std::vector<OptionInfo>& declared) const;
  // Of an option, "run.transport", as it is given: "digits.toml:14:9"; the file where it is not.
  std::string place_of(std::string_view option) const;

 private:
  static Recipe read_text(const std::string& text, const std::string& name, const std::vector<std::string>& sets,
                          bool of_run);
  void interpret(formats::Table tree);
  void find_places();
  bool goes_along(const OptionMap& given, const std::string& name) const;
  // Each as its member's type says.
  template <class Options>
  void read_section(const Section& section, Options& options);
  template <class Options>
  void read_section(const Section& section, std::optional<Options>& options);
  void read_section(const Section& section, ValidateOptions& options);
  void read_section(const Section& section, RecordOptions& options);
  void read_section(const Section& section, PluginOptions& options);
  void read_section(const Section& section, ParallelOptions& options);
  void read_section(const Section& section, Component& component);
  void read_section(const Section& section, std::vector<NetworkSection>& networks);
  void read_section(const Section& section, std::map<std::string, GivenOption>& pinned);
  void read_pictures(const Section& section, const formats::Node& list);
  void read_sampler(const Section& section);
  void read_optimizer(const Section& section);
  void read_data_parts(const Section& section);
  void resolve_parts(const std::string& section, const std::vector<DataPart>& parts);
  NetworkSection read_network(const std::string& kind, const formats::Entry& entry);
  void read_own_keys(NetworkSection& network, const OptionMap& given);
  void leave_no_cache();
  bool of_run_ = false;
  formats::Table given_, resolved_;
  OptionEffects effects_;
};

// Of the plugin that a component's section names: of [encoder.image] "encoder", of [network.NAME] "model".
std::string kind_of(const std::string& section);

// The plugin that carries tensors between ranks; empty: the host's own does.
std::string transport_of(const Recipe& recipe);

// How a recipe names what [run] output leaves open.
std::string output_folder(const Recipe& recipe);

}  // namespace ditto
