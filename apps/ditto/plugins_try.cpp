// ditto plugins try FILE [RECIPE]
#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <ditto/testing/checks.h>
#include <ditto/text.h>

#include "apps/ditto/plugins_try.h"
#include "core/network/paper_mesh.h"
#include "core/plugin/doing.h"
#include "core/train/assembly.h"

namespace ditto {

namespace {

constexpr const char* kCommand = "ditto plugins try";
// Where neither recipe nor --set say them: every strategy's degrees divide them.
const std::map<std::string, int64_t> kSmall{{"depth", 2}, {"width", 32}, {"heads", 4}};

// A model that is made again and again.
struct Subject {
  const Factory<Model>* factory;
  std::string name;  // "model 'mine'"
  OptionMap options;
  ModelNeeds needs;

  std::shared_ptr<Model> make() const {
    return guarded(name + ", being made", [&] {
      OptionReader reader(options);
      return factory->make(reader, needs);
    });
  }
};

// What the recipe's data, encoders and schedule offer, found out on shapes alone.
ModelNeeds needs_of(Recipe recipe, Registry& registry) {
  const ShapesAlone no_numbers;
  recipe.run.device = "meta";
  recipe.parallel = {};
  recipe.validate.every = 0;
  AssemblyParts parts;
  parts.data = parts.shapes_only = true;
  parts.weights = RunningModel::Weights::none;
  parts.frozen = FrozenWeights::none;
  Degrees degrees;
  for (const Axis axis : kAxes) degrees[axis] = 1;
  const PaperMesh mesh(degrees, {}, PaperMesh::Peers::silent);
  return Assembly(recipe, registry, mesh, parts, {}).main->setting.needs;
}

OptionMap small(OptionMap options, const Factory<Model>& factory) {
  OptionReader declares({options.section, options.where, {}});
  factory.declare(declares);
  for (const auto& option : declares.declared()) {
    const auto it = kSmall.find(option.name);
    const auto* fallback = std::get_if<int64_t>(&option.fallback);
    if (it != kSmall.end() && fallback && *fallback > it->second)
      options.given.try_emplace(option.name, GivenOption{it->second, kCommand});
  }
  return options;
}

// Of pictures or of video, with classes and text for models that take them; small, or by its own defaults.
Subject of_defaults(Subject subject) {
  using testing::model_needs;
  const auto own = subject.options, tiny = small(own, *subject.factory);
  std::optional<Error> first;
  for (const auto& options : {tiny, own})
    for (const auto& needs : {model_needs({4, 8, 8}, 4, 10, 12), model_needs({4, 4, 8, 4}, 4, 10, 12)}) {
      subject.options = options;
      subject.needs = needs;
      try {
        subject.make();
        return subject;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::config) throw;
        if (!first) first = error;
      }
    }
  throw *first;
}

Subject subject_of(const PluginFile& file, const std::string& recipe_file, Recipe& recipe, Registry& registry) {
  if (recipe.model.plugin != file.id)
    throw Error(ErrorKind::config, recipe.model.where,
                "names model \"" + recipe.model.plugin + "\", and " + file.path + " is \"" + file.id + "\"",
                "give a recipe of this model, or none");
  Subject subject{
      &registry.factory<Model>(file.id, kCommand), plugin_name(file.kind, file.id), recipe.model.options, {}};
  if (recipe_file.empty()) return of_defaults(std::move(subject));
  subject.needs = needs_of(recipe, registry);
  return subject;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + (size < 0 ? "any" : std::to_string(size));
  return "[" + text + "]";
}

std::string heading(const PluginFile& file, const Subject& subject) {
  std::string options, inputs;
  for (const auto& [name, option] : subject.options.given)
    options += (options.empty() ? " with " : ", ") + name + " = " + to_text(option.value);
  for (const auto& input : subject.make()->takes())
    inputs += (inputs.empty() ? "" : ", ") + input.name + " " + shape_text(input.shape);
  return shown(fmt::format("{}: {} {}{}; it takes {}", file.path, subject.name, file.version, options, inputs),
               kSentenceShown);
}

// Of one model's library, which is opened in a process of its own first.
PluginFile model_file(const std::string& path) {
  Registry registry({{path, kCommand}}, try_plugins);
  if (registry.files().size() != 1)
    throw Error(ErrorKind::config, path, "holds " + std::to_string(registry.files().size()) + " libraries",
                "give the file of one model");
  const PluginFile& file = registry.files()[0];
  if (!file.refusal.empty()) throw Error(ErrorKind::plugin, file.path, file.refusal);
  if (file.kind != Model::kKind)
    throw Error(ErrorKind::config, file.path, "is of the kind " + file.kind,
                "models are tried; the checks of other kinds are functions of <ditto/testing/checks.h>");
  registry.factory<Model>(file.id, kCommand);
  return file;
}

}  // namespace

void try_plugin(const TryArguments& arguments) {
  const PluginFile file = model_file(arguments.file);
  auto folders = plugin_folders(arguments.plugin_path);
  folders.push_back({file.path, kCommand});
  Registry registry(folders, try_new_plugins);
  auto recipe = arguments.recipe.empty()
                    ? Recipe::parse("[model]\nplugin = \"" + file.id + "\"\n", kCommand, arguments.sets)
                    : Recipe::read(arguments.recipe, arguments.sets);
  const auto subject = subject_of(file, arguments.recipe, recipe, registry);
  std::cout << heading(file, subject) << "\nin fp64, against one rank, to 1e-12:\n" << std::flush;

  testing::TrialParts parts{[&] { return subject.make(); }};
  parts.strategy = [&](const std::string& id, const testing::OptionValues& options,
                       const ParallelStrategy::Needs& needs) {
    const auto& factory = registry.factory<ParallelStrategy>(id, kCommand);
    OptionReader reader(testing::option_map(options));
    return factory.make(reader, needs);
  };
  parts.table = Components(recipe, registry).op_table();
  parts.around = [&](const std::string& layout, const std::function<void()>& body) {
    const std::string what = subject.name + ", tried: " + layout;
    const Doing doing(what.c_str());
    body();
  };
  const auto trials = testing::try_layouts(parts);
  std::cout << testing::to_text(trials);
  const auto wrong = std::count_if(trials.begin(), trials.end(), [](const testing::Trial& trial) {
    return trial.outcome == testing::Trial::Outcome::wrong;
  });
  if (wrong == 0) {
    std::cout << "\nIt trains alike wherever it is not refused.\n";
    return;
  }
  std::cout << std::flush;
  throw Error(ErrorKind::plugin, file.path,
              wrong == 1 && trials[0].outcome == testing::Trial::Outcome::wrong
                  ? subject.name + " is wrong by itself"
                  : fmt::format("{} is wrong on {} of {} layouts", subject.name, wrong, trials.size()),
              "the sentences on standard output say where, and what it looks like");
}

}  // namespace ditto
