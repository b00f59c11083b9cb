#include "core/diff/record.h"

#include <algorithm>
#include <filesystem>

#include "core/assembly/first_weights.h"
#include "core/console/streams.h"
#include "core/diff/probe.h"

namespace ditto::diff {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSuffix = ".events";

}  // namespace

void record(Recipe recipe, Registry& registry, const Mesh& mesh, const RecordCall& call) {
  recipe.validate.every = recipe.validate.grid_every = 0;
  recipe.run.audit = 0;
  recipe.loader.encode_ahead = 0;  // what is recorded has an order
  AssemblyParts parts;
  parts.data = parts.objective = true;
  parts.opened = [&](const Source* train, const Source*) {
    call.expect_same("data", facts_of(*train, "data"), ErrorKind::data);
  };
  Assembly assembly(recipe, registry, mesh, parts, {});
  Loader loader(assembly.train_data, recipe.loader, static_cast<uint64_t>(recipe.run.seed),
                [](const std::string& line) { report::tell(line); });
  const auto optimizer = assembly.make_optimizer();
  read_first_weights(
      assembly,
      {mesh, [&](const auto& topic, const auto& facts) { call.expect_same(topic, facts, ErrorKind::checkpoint); },
       [](const std::string&) {}});
  Ema ema(assembly.networks->learned(), recipe.ema);
  Probe probe(assembly);
  TrainingStep training(assembly, loader, *optimizer, ema);
  training.observers.push_back(&probe);
  training.expect(0);
  for (int64_t step = 0; step < std::min(call.steps, recipe.run.steps); ++step) {
    if (call.watch) call.watch->begin_step();
    training.run(step);
  }
  probe.events().write((fs::path(call.folder) / (std::to_string(mesh.rank()) + kSuffix)).string());
}

Events recorded(const std::string& folder) {
  Events events;
  for (int rank = 0;; ++rank) {
    const auto path = fs::path(folder) / (std::to_string(rank) + kSuffix);
    if (!fs::exists(path)) return events;
    events.merge(path.string());
  }
}

}  // namespace ditto::diff
