#include "core/train/rehearsal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/dist/stop.h"
#include "core/train/assembly.h"
#include "core/train/launch.h"

namespace ditto {

namespace {

constexpr Axis kCutting[] = {Axis::pipeline, Axis::context, Axis::expert, Axis::tensor};

// Rank 0, with all the sizes and nobody to talk to. Data axes that only share out samples or hold pieces are left out.
class PaperMesh final : public Mesh {
 public:
  PaperMesh(Degrees degrees, int ranks) : degrees_(std::move(degrees)), ranks_(ranks) {
    for (const Axis axis : {Axis::replicate, Axis::shard}) degrees_[axis] = 1;
  }
  int size(Axis axis) const override { return static_cast<int>(degrees_.at(axis)); }
  int index(Axis) const override { return 0; }
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  Traffic& traffic() const override { return traffic_; }
  using Mesh::group;
  const Group& group(const AxisSet& axes) const override {
    int size = 1;
    std::string label;
    for (const Axis axis : axes) {
      if (this->size(axis) == 1) continue;
      size *= this->size(axis);
      label += (label.empty() ? "" : "+") + std::string(name(axis));
    }
    if (size == 1) return groups_[axes];
    // Without a backend: whoever talks is told so.
    return groups_.try_emplace(axes, 0, size, label, c10::make_intrusive<c10d::ProcessGroup>(0, size)).first->second;
  }

 private:
  Degrees degrees_;
  int ranks_;
  mutable Traffic traffic_;
  mutable std::map<AxisSet, Group> groups_;
};

// Without connections some things fail that a run would not: `is_said` tells what counts.
[[noreturn]] void put_together(Recipe recipe, Registry& registry, const Degrees& degrees, int ranks,
                               bool (*is_said)(const Error&)) {
  int code = 0;
  try {
    const PaperMesh mesh(degrees, ranks);
    AssemblyParts parts;
    parts.data = parts.objective = true;
    parts.sampler = recipe.validate.grid_every > 0;
    parts.weights = RunningModel::Weights::none;
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

int in_child(const Recipe& recipe, Registry& registry, const Degrees& degrees, int ranks,
             bool (*is_said)(const Error&)) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return 0;
  if (child == 0) put_together(recipe, registry, degrees, ranks, is_said);
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
  return in_child(recipe, registry, all, ranks,
                  [](const Error& error) { return error.exit_code() == Error::exit_code(ErrorKind::config); });
}

int rehearse(const Recipe& recipe, Registry& registry, int ranks) {
  return in_child(recipe, registry, complete_degrees(degrees(recipe), ranks), ranks,
                  [](const Error& error) { return error.kind() != ErrorKind::distributed; });
}

}  // namespace ditto
