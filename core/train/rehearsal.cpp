#include "core/train/rehearsal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/data/sizes.h"
#include "core/network/paper_mesh.h"
#include "core/network/strategies.h"
#include "core/train/first_weights.h"
#include "core/train/step_shares.h"
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
  sizes_report(*assembly.train_data, recipe.batch.taken());
}

// Without connections some things fail that a run would not: `is_said` tells what counts.
[[noreturn]] void put_together(Recipe recipe, Registry& registry, Degrees degrees, void (*then)(Assembly&),
                               bool (*is_said)(const Error&)) {
  int code = 0;
  try {
    degrees[Axis::replicate] = degrees[Axis::shard] = 1;  // they only share out samples, or hold pieces
    const PaperMesh mesh(degrees, {}, PaperMesh::Peers::silent);
    AssemblyParts parts;
    parts.data = parts.objective = true;
    parts.sampler = recipe.validate.grid_every > 0;
    parts.weights = RunningModel::Weights::none;
    parts.frozen = FrozenWeights::room;
    guarded("", [&] {
      Assembly assembly(recipe, registry, mesh, parts, {});
      then(assembly);
    });
  } catch (const Error& error) {
    if (is_said(error)) {
      code = error.exit_code();
      std::fprintf(stderr, "error: %s\n", error.what());
    }
  }
  std::fflush(nullptr);
  ::_exit(code);
}

int in_child(const Recipe& recipe, Registry& registry, const Degrees& degrees, void (*then)(Assembly&),
             bool (*is_said)(const Error&)) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return 0;
  if (child == 0) put_together(recipe, registry, degrees, then, is_said);
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
  return in_child(
      recipe, registry, all, [](Assembly&) {},
      [](const Error& error) { return error.exit_code() == Error::exit_code(ErrorKind::config); });
}

int rehearse(Recipe recipe, Registry& registry, int ranks) {
  const auto all = complete_degrees(degrees(recipe), ranks);
  refuse_unserved(recipe, all);
  recipe.run.device = "cpu";
  return in_child(recipe, registry, all, begin,
                  [](const Error& error) { return error.kind() != ErrorKind::distributed; });
}

}  // namespace ditto
