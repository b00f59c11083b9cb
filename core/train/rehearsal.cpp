#include "core/train/rehearsal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/network/paper_mesh.h"
#include "core/network/strategies.h"
#include "core/train/assembly.h"

namespace ditto {

namespace {

constexpr Axis kCutting[] = {Axis::pipeline, Axis::context, Axis::expert, Axis::tensor};

// Without connections some things fail that a run would not: `is_said` tells what counts.
[[noreturn]] void put_together(Recipe recipe, Registry& registry, Degrees degrees, bool (*is_said)(const Error&)) {
  int code = 0;
  try {
    degrees[Axis::replicate] = degrees[Axis::shard] = 1;  // they only share out samples, or hold pieces
    const PaperMesh mesh(degrees, {}, PaperMesh::Peers::silent);
    AssemblyParts parts;
    parts.data = parts.objective = true;
    parts.sampler = recipe.validate.grid_every > 0;
    parts.weights = RunningModel::Weights::none;
    parts.frozen = FrozenWeights::room;
    guarded("", [&] { Assembly(recipe, registry, mesh, parts, {}); });
  } catch (const Error& error) {
    if (is_said(error)) {
      code = error.exit_code();
      std::fprintf(stderr, "error: %s\n", error.what());
    }
  }
  std::fflush(nullptr);
  ::_exit(code);
}

int in_child(const Recipe& recipe, Registry& registry, const Degrees& degrees, bool (*is_said)(const Error&)) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return 0;
  if (child == 0) put_together(recipe, registry, degrees, is_said);
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
  return in_child(recipe, registry, all,
                  [](const Error& error) { return error.exit_code() == Error::exit_code(ErrorKind::config); });
}

int rehearse(const Recipe& recipe, Registry& registry, int ranks) {
  return in_child(recipe, registry, complete_degrees(degrees(recipe), ranks),
                  [](const Error& error) { return error.kind() != ErrorKind::distributed; });
}

}  // namespace ditto
