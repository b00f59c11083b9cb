#include "core/train/training.h"

#include <filesystem>

#include <fmt/format.h>

#include "core/assembly/first_weights.h"
#include "core/assembly/run_notes.h"
#include "core/config/numerics.h"
#include "core/console/streams.h"
#include "core/data/batch_plan.h"
#include "core/profile/shown_step.h"
#include "core/train/sheets.h"
#include "core/train/validation.h"

namespace ditto {
namespace {

// By which the watch names a rank that stands still there.
struct Waits final : StepObserver {
  explicit Waits(RankWatch& of) : watch(of) {}
  void waits_for_encoding() override { watch.goes_on("the encoding of its next step"); }
  RankWatch& watch;
};

}  // namespace

Training::Training(Recipe& the_recipe, Registry& the_registry, const Mesh& the_mesh, const TrainOptions& options,
                   RunLog& log)
    : recipe(the_recipe), registry(the_registry), mesh(the_mesh), options_(options), log_(log) {}

void Training::assemble(const std::optional<std::string>& start) {
  AssemblyParts parts;
  parts.data = parts.objective = true;
  parts.sampler = recipe.validate.grid_every > 0;
  parts.measures = !start;  // a resume keeps what the run began with
  parts.kept = kept_before;
  parts.opened = [this](const Source* train, const Source* validation) {
    auto facts = facts_of(*train, "data");
    if (validation) facts.merge(facts_of(*validation, "validation data"));
    options_.expect_same("data", facts, ErrorKind::data);
  };
  assembly =
      std::make_unique<Assembly>(recipe, registry, mesh, parts, [this](const std::string& line) { log_.note(line); });
  if (recipe.run.audit > 0 && !is_one_number(recipe))
    options_.expect_same("machine: run.audit compares bits, which fast kernels make alike on equal machines alone",
                         machine_record(assembly->main->ctx->device), ErrorKind::config);
  open_data();
  optimizer = assembly->make_optimizer();
  const auto say = [this](const std::string& line) { log_.say(line); };
  // A checkpoint holds all that a run goes on with, but for the model that an adapter is learned on.
  if (!start || assembly->main->adapter)
    started_from = read_first_weights(*assembly, {mesh,
                                                  [this](const auto& topic, const auto& facts) {
                                                    options_.expect_same(topic, facts, ErrorKind::checkpoint);
                                                  },
                                                  say, options_.allow_change});
  ema = std::make_unique<Ema>(assembly->networks->learned(), recipe.ema);
  step = std::make_unique<TrainingStep>(*assembly, *loader, *optimizer, *ema);
  step->say = say;
  if (options_.watch) step->observers.push_back((waits_ = std::make_unique<Waits>(*options_.watch)).get());
  if (assembly->main->ctx->device.is_cuda() && ShownRange::is_built())
    step->observers.push_back((shown_ = std::make_unique<ShownStep>()).get());
  if (validation_loader) check_validation(*assembly, *validation_loader);
  sizes = find_sizes(*assembly->train_data, taken_sizes(recipe.batch));
  assembly->check(sizes.learned);
  check_pictures(*assembly);
}

void Training::open_data() {
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  // Of a damaged shard all ranks hear alike, of a sample that does not decode only the rank that reads it.
  const auto warn = [this](const std::string& line) {
    if (!log_.writes() && step) report::tell(fmt::format("rank {}: {}", mesh.rank(), line));
    log_.say(line);
  };
  data = assembly->train_data->fingerprint();
  loader = std::make_unique<Loader>(assembly->train_data, recipe.loader, seed, warn);
  if (!assembly->validation_data) return;
  held_out = assembly->validation_data->fingerprint();
  validation_loader =
      std::make_unique<Loader>(assembly->validation_data, validation_options(recipe.loader), seed, warn);
}

std::string Training::checkpoints() const {
  return (std::filesystem::path(output_folder(recipe)) / "checkpoints").string();
}

}  // namespace ditto
