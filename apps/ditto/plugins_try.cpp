// ditto plugins try FILE [RECIPE]
#include <algorithm>
#include <array>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include <ditto/testing/checks.h>
#include <ditto/text.h>

#include "apps/ditto/plugins_try.h"
#include "core/assembly/assembly.h"
#include "core/components/sources.h"
#include "core/data/names.h"
#include "core/data/shapes.h"
#include "core/mesh/paper_mesh.h"
#include "core/plugin/doing.h"
#include "core/plugin/trial.h"

namespace ditto {

namespace {

constexpr const char* kCommand = "ditto plugins try";
// Where neither recipe nor --set say them: every strategy's degrees divide them.
constexpr std::array<std::pair<std::string_view, int64_t>, 3> kSmall{{{"depth", 2}, {"width", 32}, {"heads", 4}}};

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
    const auto it =
        std::find_if(kSmall.begin(), kSmall.end(), [&](const auto& one) { return one.first == option.name; });
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

std::string heading(const PluginFile& file, const OptionMap& given, const TensorSpecs& takes) {
  std::string options, inputs;
  for (const auto& [name, option] : given.given)
    options += (options.empty() ? " with " : ", ") + name + " = " + to_text(option.value);
  for (const auto& input : takes) inputs += (inputs.empty() ? "" : ", ") + input.name + " " + shape_text(input.shape);
  return shown(fmt::format("{}: {} {}{}; it takes {}", file.path, plugin_name(file.kind, file.id), file.version,
                           options, inputs),
               kSentenceShown);
}

// Of one library, which is opened in a process of its own first.
PluginFile file_of(const std::string& path) {
  Registry registry({{path, kCommand}}, try_plugins);
  if (registry.files().size() != 1)
    throw Error(ErrorKind::config, path, "holds " + std::to_string(registry.files().size()) + " libraries",
                "give the file of one model or encoder");
  const PluginFile& file = registry.files()[0];
  if (!file.refusal.empty()) throw Error(ErrorKind::plugin, file.path, file.refusal);
  if (file.kind == Model::kKind)
    registry.factory<Model>(file.id, kCommand);
  else if (file.kind == Encoder::kKind)
    registry.factory<Encoder>(file.id, kCommand);
  else
    throw Error(ErrorKind::config, file.path, "is of the kind " + file.kind,
                "models and encoders are tried; the checks of other kinds are functions of <ditto/testing/checks.h>");
  return file;
}

// An encoder that is made again and again.
struct TriedEncoder {
  const Factory<Encoder>* factory;
  OptionMap options;
  TensorSpecs inputs;  // what there is when it encodes

  std::shared_ptr<Encoder> make(const std::string& id) const {
    return guarded(plugin_name(Encoder::kKind, id) + ", being made", [&] {
      OptionReader reader(options);
      return factory->make(reader, {inputs});
    });
  }
};

// Pictures, or else videos, with captions.
TriedEncoder encoder_of_defaults(TriedEncoder tried, const std::string& id) {
  std::optional<Error> first;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 16, 16}, {3, 4, 16, 16}}) {
    tried.inputs = {{names::kImage, at::kFloat, shape, "-1 … 1"}, {"caption", at::kByte, {-1}, "UTF-8"}};
    try {
      tried.make(id);
      return tried;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      if (!first) first = error;
    }
  }
  throw *first;
}

// The recipe's section of it, with what data and the encoders before it make.
TriedEncoder encoder_of(const PluginFile& file, const std::string& recipe_file, Recipe& recipe, Registry& registry) {
  const auto& factory = registry.factory<Encoder>(file.id, kCommand);
  const auto ours = [&](const NetworkSection& section) { return section.component.plugin == file.id; };
  const auto at = std::find_if(recipe.encoders.begin(), recipe.encoders.end(), ours);
  if (at == recipe.encoders.end())
    throw Error(ErrorKind::config, recipe.name, "names no encoder \"" + file.id + "\", which " + file.path + " is",
                "give a recipe with this encoder, or none");
  TriedEncoder tried{&factory, at->component.options, {}};
  if (recipe_file.empty()) return encoder_of_defaults(std::move(tried), file.id);
  const ShapesAlone no_numbers;
  Components components(recipe, registry);
  TensorFlow flow;
  flow.make(
      "data \"" + recipe.data.plugin + "\"", recipe.data.where,
      open_source(components, {.split = SplitOf::train, .folder = recipe.run.folder, .shapes_only = true})->makes());
  for (auto before = recipe.encoders.begin(); before != at; ++before) {
    const auto encoder = components.make<Encoder>(before->section(), before->component, {flow.specs(), {}, false});
    flow.encode("encoder \"" + before->component.plugin + "\"", before->component.where, encoder->takes(),
                encoder->makes());
  }
  tried.inputs = flow.specs();
  flow.take("encoder \"" + file.id + "\"", at->component.where, tried.make(file.id)->takes());
  return tried;
}

// How each layout fares is printed; what is wrong is thrown.
void tell_trials(const PluginFile& file, const std::vector<testing::Trial>& trials, const char* verb) {
  std::cout << testing::to_text(trials);
  const auto wrong = std::count_if(trials.begin(), trials.end(), [](const testing::Trial& trial) {
    return trial.outcome == testing::Trial::Outcome::wrong;
  });
  if (wrong == 0) {
    std::cout << "\nIt " << verb << " alike wherever it is not refused.\n";
    return;
  }
  std::cout << std::flush;
  const auto name = plugin_name(file.kind, file.id);
  throw Error(ErrorKind::plugin, file.path,
              wrong == 1 && trials[0].outcome == testing::Trial::Outcome::wrong
                  ? name + " is wrong by itself"
                  : fmt::format("{} is wrong on {} of {} layouts", name, wrong, trials.size()),
              "the sentences on standard output say where, and what it looks like");
}

// What models and encoders are tried with: the strategies and kernels of this program.
template <class Parts>
void surround(Parts& parts, const PluginFile& file, Recipe& recipe, Registry& registry) {
  parts.strategy = [&](const std::string& id, const testing::OptionValues& options,
                       const ParallelStrategy::Needs& needs) {
    const auto& factory = registry.factory<ParallelStrategy>(id, kCommand);
    OptionReader reader(testing::option_map(options));
    return factory.make(reader, needs);
  };
  parts.table = Components(recipe, registry).op_table();
  parts.around = [name = plugin_name(file.kind, file.id)](const std::string& layout,
                                                          const std::function<void()>& body) {
    const std::string what = name + ", tried: " + layout;
    const Doing doing(what.c_str());
    body();
  };
}

void introduce(const std::string& heading) {
  std::cout << heading << "\nin fp64, against one rank, to 1e-12:\n" << std::flush;
}

// How a model that trains alike fares under run.numerics = "one", where it does not.
void tell_numerics(const Subject& subject) {
  try {
    std::string calls;
    for (const auto& name :
         guarded(subject.name + ", tried: run.numerics", [&] { return testing::inexact_calls(*subject.make()); }))
      calls += (calls.empty() ? "" : ", ") + name;
    if (!calls.empty())
      std::cout << "With run.numerics = \"one\" it is refused: it calls " << calls
                << ", whose results depend on threads, sizes or instructions; ops of ctx.ops do not.\n";
  } catch (const Error& error) {
    std::cout << "With run.numerics = \"one\" it does not run: " << error.what() << "\n";
  }
}

void try_model(const PluginFile& file, const std::string& recipe_file, Recipe& recipe, Registry& registry) {
  const auto subject = subject_of(file, recipe_file, recipe, registry);
  introduce(heading(file, subject.options, subject.make()->takes()));
  testing::TrialParts parts{[&] { return subject.make(); }};
  surround(parts, file, recipe, registry);
  tell_trials(file, testing::try_layouts(parts), "trains");
  tell_numerics(subject);
}

void try_encoder(const PluginFile& file, const std::string& recipe_file, Recipe& recipe, Registry& registry) {
  const auto tried = encoder_of(file, recipe_file, recipe, registry);
  introduce(heading(file, tried.options, tried.make(file.id)->takes()));
  testing::EncoderTrialParts parts{[&] { return tried.make(file.id); }};
  surround(parts, file, recipe, registry);
  tell_trials(file, testing::try_encoder_layouts(parts), "encodes");
}

}  // namespace

void try_plugin(const TryArguments& arguments) {
  const PluginFile file = file_of(arguments.file);
  auto folders = plugin_folders(arguments.plugin_path);
  folders.push_back({file.path, kCommand});
  Registry registry(folders, try_new_plugins);
  const bool is_model = file.kind == Model::kKind;
  auto recipe =
      arguments.recipe.empty()
          ? Recipe::parse(std::string(is_model ? "[model]" : "[encoder.tried]") + "\nplugin = \"" + file.id + "\"\n",
                          kCommand, arguments.sets)
          : Recipe::read(arguments.recipe, arguments.sets);
  (is_model ? try_model : try_encoder)(file, arguments.recipe, recipe, registry);
}

}  // namespace ditto
