#include "core/plan/rehearsal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include <ditto/text.h>

#include "core/assembly/first_weights.h"
#include "core/assembly/step_shares.h"
#include "core/components/strategies.h"
#include "core/data/batch_plan.h"
#include "core/data/sizes.h"
#include "core/mesh/paper_mesh.h"
#include "core/train/sheets.h"
#include "core/train/validation.h"

namespace ditto {

namespace {

constexpr Axis kCutting[] = {Axis::pipeline, Axis::context, Axis::expert, Axis::tensor};

// What a run refuses at its start besides.
void begin(Assembly& assembly) {
  const auto& recipe = assembly.recipe;
  assembly.make_optimizer();
  check_first_weights(assembly);
  require_first_weights(recipe);
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  auto options = recipe.loader;
  options.threads = 0;
  const Loader loader(assembly.train_data, options, seed, {});
  const auto alone = each_alone(recipe, *assembly.train_data);
  StepShares(recipe.run, recipe.batch, assembly.mesh, assembly.sizes(loader), alone).step(0, 0, Phase::train);
  if (assembly.validation_data)
    check_validation(assembly, Loader(assembly.validation_data, validation_options(options), seed, {}));
  assembly.check(find_sizes(*assembly.train_data, taken_sizes(recipe.batch)).learned);
  check_pictures(assembly);
  for (const auto& line : assembly.notes()) std::printf("note: %s\n", shown(line, kSentenceShown).c_str());
}

struct Rehearsal {
  Degrees degrees;
  PaperMesh::Peers peers;
  AssemblyParts parts;
  void (*then)(Assembly&);
  bool (*is_said)(const Error&);  // without connections some things fail that a run would not
};

bool is_config(const Error& error) { return error.exit_code() == Error::exit_code(ErrorKind::config); }

AssemblyParts parts_of(const Recipe& recipe) {
  AssemblyParts parts;
  parts.data = parts.objective = true;
  parts.sampler = recipe.validate.grid_every > 0;
  parts.weights = RunningModel::Weights::none;
  parts.frozen = FrozenWeights::room;
  return parts;
}

// A rank that shares its model with others. Ranks that only share out samples, or hold pieces, are left out.
Rehearsal alone(const Recipe& recipe, Degrees degrees, void (*then)(Assembly&), bool (*is_said)(const Error&)) {
  degrees[Axis::replicate] = degrees[Axis::shard] = 1;
  return {degrees, PaperMesh::Peers::silent, parts_of(recipe), then, is_said};
}

// All ranks, and of weights and samples the shapes alone.
Rehearsal on_shapes(const Recipe& recipe, const Degrees& degrees) {
  auto parts = parts_of(recipe);
  parts.shapes_only = true;
  parts.weights = RunningModel::Weights::room;
  return {degrees, PaperMesh::Peers::alike, parts, [](Assembly&) {}, is_config};
}

[[noreturn]] void put_together(Recipe recipe, Registry& registry, const Rehearsal& rehearsal) {
  int code = 0;
  try {
    const PaperMesh mesh(rehearsal.degrees, {}, rehearsal.peers);
    std::optional<ShapesAlone> no_numbers;
    if (rehearsal.parts.shapes_only) no_numbers.emplace();
    guarded("", [&] {
      Assembly assembly(recipe, registry, mesh, rehearsal.parts, {});
      rehearsal.then(assembly);
    });
  } catch (const Error& error) {
    if (rehearsal.is_said(error)) {
      code = error.exit_code();
      std::fprintf(stderr, "error: %s\n", error.what());
    }
  }
  std::fflush(nullptr);
  ::_exit(code);
}

int in_child(const Recipe& recipe, Registry& registry, const Rehearsal& rehearsal) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return 0;
  if (child == 0) put_together(recipe, registry, rehearsal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int rehearse_layout(const Recipe& recipe, Registry& registry, int ranks) {
  const auto all = complete_degrees(degrees(recipe), ranks);
  bool cuts = false;
  for (const Axis axis : kCutting) cuts = cuts || all.at(axis) > 1;
  if (!cuts || recipe.run.device != "cpu") return 0;
  return in_child(recipe, registry,
                  alone(
                      recipe, all, [](Assembly&) {}, is_config));
}

int rehearse(Recipe recipe, Registry& registry, int ranks) {
  const auto all = complete_degrees(degrees(recipe), ranks);
  refuse_unserved(recipe, all);
  recipe.run.device = "cpu";
  const auto begins =
      alone(recipe, all, begin, [](const Error& error) { return error.kind() != ErrorKind::distributed; });
  if (const int code = in_child(recipe, registry, begins)) return code;
  if (all.at(Axis::replicate) == 1 && all.at(Axis::shard) == 1) return 0;
  recipe.run.device = "meta";
  return in_child(recipe, registry, on_shapes(recipe, all));
}

}  // namespace ditto
