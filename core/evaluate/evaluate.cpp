#include "core/evaluate/evaluate.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "core/assembly/run_notes.h"
#include "core/assembly/step_shares.h"
#include "core/checkpoint/disk.h"
#include "core/components/sources.h"
#include "core/components/strategies.h"
#include "core/config/differences.h"
#include "core/console/streams.h"
#include "core/data/encoded_set.h"
#include "core/evaluate/held_out_place.h"
#include "core/process/launch.h"
#include "core/ranks/launch.h"
#include "core/train/validation.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

// Every step that lies there; of one checkpoint itself.
std::vector<std::string> steps_at(const std::string& path) {
  const auto inner = fs::path(path) / "checkpoints";
  const auto folder = fs::is_directory(inner) ? inner.string() : path;
  std::vector<std::string> all;
  for (const auto& step : checkpoint::list(folder).steps) all.push_back((fs::path(folder) / step.name).string());
  return all.empty() ? std::vector{path} : all;
}

using Options = std::map<std::string, std::string>;

// As the schedule's plugin reads it, defaults and all.
Options schedule_of(const Recipe& recipe, Registry& registry) {
  auto copy = recipe;
  if (copy.scheduler) Components(copy, registry).make<Scheduler>("scheduler", copy.scheduler, {});
  const auto* section = copy.resolved().find("scheduler");
  return section ? flat(*section->as<formats::Table>()) : Options{};
}

// Its key; empty: there is none. Of two plugins options say nothing.
std::string first_difference(const Options& one, const Options& other) {
  const auto differs = [&](const std::string& key) {
    const auto mine = one.find(key), theirs = other.find(key);
    return (mine == one.end()) != (theirs == other.end()) || (mine != one.end() && mine->second != theirs->second);
  };
  if (differs("plugin")) return "plugin";
  for (const auto& options : {one, other})
    for (const auto& [key, value] : options)
      if (differs(key)) return key;
  return {};
}

// Its options of the data that say otherwise; empty: they are alike.
std::string other_data(const Recipe& recipe, const Recipe& other) {
  const auto options = [](const Recipe& of) {
    const auto* section = of.resolved().find("data");
    return section ? flat(*section->as<formats::Table>()) : Options{};
  };
  const auto key = first_difference(options(recipe), options(other));
  return key.empty() ? key : ", as its data." + key + " is another";
}

std::string held_out_of(const Recipe& recipe, Registry& registry) {
  auto copy = recipe;
  Components components(copy, registry);
  return open_source(components, {.split = SplitOf::validation, .folder = copy.run.folder})->fingerprint();
}

// Samples of a forward where the recipe leaves that to the ranks: as many as in the run, for its last digits.
int64_t forward_of_run(const SavedModel& saved) {
  const auto info = checkpoint::describe(saved.path);
  const auto recipe = Recipe::saved(info.recipe_toml, saved.path + "/recipe.toml");
  int64_t model_ranks = 1;
  for (const auto& [axis, degree] : degrees(recipe))
    if (!is_data_axis(axis)) model_ranks *= std::max<int64_t>(1, degree);
  return asked_micro_batch(recipe.run, std::max<int64_t>(1, info.ranks / model_ranks));
}

class Evaluator {
 public:
  Evaluator(std::vector<SavedModel>& all, Registry& registry, const Mesh& mesh, const EvaluateCall& call)
      : all_(all), registry_(registry), mesh_(mesh), call_(call) {}

  EvaluationResult run() {
    auto& first = all_.front().recipe;
    for (auto& saved : all_) {
      registry_.try_out(plugins_of(saved.recipe));
      see_alike(saved);
      if (!call_.data.empty()) hold_out(saved.recipe, registry_, call_.data);
    }
    found_.seed = first.run.seed;
    const auto groups = grouped();
    for (const auto& group : groups) check(group);
    for (const auto& group : groups) measure(group);
    return std::move(found_);
  }

 private:
  using Group = std::span<SavedModel>;

  // Neighbours of one recipe, for which all is made once.
  std::vector<Group> grouped() {
    const auto key = [](const SavedModel& saved) {
      return formats::render_toml(saved.recipe.resolved()) + to_text(saved.shapes);
    };
    std::vector<Group> groups;
    std::string before;
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto own = key(all_[i]);
      if (i > 0 && own == before)
        groups.back() = {groups.back().data(), groups.back().size() + 1};
      else
        groups.emplace_back(&all_[i], 1);
      before = own;
    }
    return groups;
  }

  void say(const std::string& line) const {
    if (mesh_.rank() == 0) call_.say(line);
  }

  // What says which samples are seen, when, and with which noise.
  void see_alike(SavedModel& saved) {
    const auto& first = all_.front().recipe;
    auto& own = saved.recipe;
    std::string others;
    const auto take = [&](const char* name, auto& value, const auto& of_first) {
      if (value != of_first) others += (others.empty() ? "" : ", ") + std::string(name);
      value = of_first;
    };
    take("run.seed", own.run.seed, first.run.seed);
    take("validate.samples", own.validate.samples, first.validate.samples);
    take("validate.strata", own.validate.strata, first.validate.strata);
    take("batch.sizes", own.batch.sizes, first.batch.sizes);
    if (!others.empty())
      say(fmt::format(
          "note: {} has another {}, and is seen as {} is: a validation of its run's own was of other numbers",
          shown(saved.path), others, shown(all_.front().path)));
  }

  void check(Group group) {
    const auto& recipe = group.front().recipe;
    const auto& path = group.front().path;
    const auto& of_all = all_.front();
    const auto refuse = [&](const std::string& what, const char* remedy) {
      throw Error(ErrorKind::config, path, what, remedy);
    };
    if (recipe.run.device != of_all.recipe.run.device)
      refuse("was computed on " + recipe.run.device + ", and " + of_all.path + " on " + of_all.recipe.run.device,
             "choose one device for all: --set run.device=cpu");
    const auto own = schedule_of(recipe, registry_), first = schedule_of(of_all.recipe, registry_);
    if (const auto key = first_difference(own, first); !key.empty()) {
      const auto text = [&](const Options& options) {
        const auto at = options.find(key);
        return "scheduler." + key + (at == options.end() ? " is not there" : " = " + at->second);
      };
      refuse(text(own) + ", and of " + of_all.path + " " + text(first) + ": their losses are at other levels of noise",
             "evaluate them by two commands");
    }
    const auto held_out = held_out_by(group.front());
    if (found_.held_out.empty()) found_.held_out = held_out;
    if (held_out != found_.held_out)
      refuse(
          "holds out other samples than " + of_all.path + (call_.data.empty() ? "" : other_data(recipe, of_all.recipe)),
          call_.data.empty() ? "name one set for all: --data PLACE, or options by --set data.NAME=VALUE"
                             : "give all of them one way to read it: --set data.NAME=VALUE");
    const auto noted = group.front().notes.find("held_out");
    if (call_.data.empty() && noted != group.front().notes.end() && noted->second != held_out)
      say("note: what " + shown(path) + " holds out has changed since: its run's own losses were of other samples");
  }

  std::string held_out_by(const SavedModel& saved) const {
    try {
      return held_out_of(saved.recipe, registry_);
    } catch (const Error& error) {
      if (!call_.data.empty() || error.kind() != ErrorKind::config) throw;
      throw Error(ErrorKind::config, saved.path,
                  std::string("has no held-out samples that can be read: ") + error.what(), "name some: --data PLACE");
    }
  }

  void measure(Group group) {
    auto& recipe = group.front().recipe;
    const bool is_given = recipe.validate.batch > 0;
    Assembly assembly(recipe, registry_, mesh_, parts_of(group), {});
    Loader loader(assembly.validation_data, validation_options(recipe.loader), static_cast<uint64_t>(recipe.run.seed),
                  [this](const std::string& line) {
                    call_.say(mesh_.rank() == 0 ? line : fmt::format("rank {}: {}", mesh_.rank(), line));
                  });
    check_validation(assembly, loader);
    for (const auto& saved : group) {
      require_same_parts(saved, *assembly.networks);
      call_.expect_same(fmt::format("checkpoint {}", &saved - all_.data()), facts_of_checkpoint(saved.path),
                        ErrorKind::checkpoint);
      if (!is_given) recipe.validate.batch = forward_of_run(saved);
      for (const auto& weights : weights_of(saved)) measure(saved, weights, assembly, loader);
    }
  }

  AssemblyParts parts_of(Group group) const {
    const auto& saved = group.front();
    AssemblyParts parts;
    parts.data = parts.held_out_alone = parts.objective = true;
    parts.weights = RunningModel::Weights::room;
    parts.opened = [this, &saved](const Source*, const Source* held_out) {
      call_.expect_same(fmt::format("held-out data {}", &saved - all_.data()), facts_of(*held_out, "validation data"),
                        ErrorKind::data);
      require_fit(saved, specs_before_encoders(*held_out));
    };
    return parts;
  }

  // The samples are such as the model has learned from.
  static void require_fit(const SavedModel& saved, const TensorSpecs& held_out) {
    const auto text = [](const TensorSpec& spec) {
      return to_text(OptionValue(spec.shape)) + (spec.values > 0 ? fmt::format(" of {} classes", spec.values) : "");
    };
    for (const auto& learned : saved.shapes.data) {
      const auto* here = find(held_out, learned.name);
      if (here && here->shape == learned.shape && here->values == learned.values) continue;
      throw Error(ErrorKind::config, saved.path,
                  "learned from samples whose \"" + learned.name + "\" is " + text(learned) +
                      ", and those held out have " + (here ? text(*here) : "none"),
                  "name samples of the same kind, or give [data] options by --set data.NAME=VALUE");
    }
    const auto others = other_names(saved.shapes.data, held_out);
    if (others && others->apart.is_elsewhere)
      throw Error(ErrorKind::config, saved.path, others->text("where it learned", "where samples are held out"),
                  "number the classes of both alike");
  }

  static void require_same_parts(const SavedModel& saved, const Networks& networks) {
    const RunNotes notes(saved.notes, saved.path);
    for (const auto& [name, fingerprint] : networks.fingerprints()) notes.require_network(name, fingerprint);
    for (const auto& encoder : networks.encoders)
      if (!encoder->fingerprint().empty()) notes.require_weights(encoder->section, encoder->fingerprint());
  }

  std::vector<std::string> weights_of(const SavedModel& saved) const {
    std::vector<std::string> all;
    if (saved.has_ema && call_.weights != WhichWeights::trained) all.emplace_back("ema");
    if (!saved.has_ema || call_.weights != WhichWeights::average) all.emplace_back("weights");
    return all;
  }

  int64_t count() const {
    int64_t sum = 0;
    for (const auto& saved : all_) sum += static_cast<int64_t>(weights_of(saved).size());
    return sum;
  }

  void measure(const SavedModel& saved, const std::string& weights, Assembly& assembly, Loader& loader) {
    const auto began = std::chrono::steady_clock::now();
    assembly.networks->load(saved, weights);
    const auto losses = held_out_losses(assembly, loader);
    found_.each = losses.each;
    Evaluated row{saved.path, saved.step, saved.samples, weights,         losses.samples,
                  {},         {},         losses.parts,  losses.measures, 0};
    if (losses.samples > 0) {
      row.loss = spread_of_all(losses.measured, kStrata, losses.each);
      row.loss.mean = losses.loss;
    }
    for (int64_t k = 0; k < kStrata; ++k) {
      row.strata.push_back(spread_of_stratum(losses.measured, k, kStrata));
      row.strata.back().mean = losses.strata[static_cast<size_t>(k)];  // the run's own, to its last digit
    }
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    found_.rows.push_back(std::move(row));
    call_.progress(static_cast<int64_t>(found_.rows.size()), count());
  }

  std::vector<SavedModel>& all_;
  Registry& registry_;
  const Mesh& mesh_;
  const EvaluateCall& call_;
  EvaluationResult found_;
};

}  // namespace

std::vector<SavedModel> open_for_evaluation(const std::vector<std::string>& named, const std::vector<std::string>& sets,
                                            bool all_steps) {
  std::vector<SavedModel> all;
  for (const auto& name : named)
    for (const auto& path : all_steps ? steps_at(name) : std::vector{name}) {
      const auto wrong = path == name ? std::vector<std::string>() : checkpoint::verify(path);
      if (wrong.empty())
        all.push_back(open_saved(path, sets, "", SavedUse::evaluation));
      else if (rank_info().rank == 0)
        report::tell("warning: skipped " + shown(path) + ": " + wrong.front());
    }
  if (all.empty())
    throw Error(ErrorKind::checkpoint, named.front(), "holds no checkpoint that can be used", "name another run");
  return all;
}

EvaluationResult evaluate(std::vector<SavedModel>& checkpoints, Registry& registry, const Mesh& mesh,
                          const EvaluateCall& call) {
  return Evaluator(checkpoints, registry, mesh, call).run();
}

}  // namespace ditto
