// This process as one rank of a command that several may share: what all such commands do before and after their work.
#pragma once

#include <functional>
#include <optional>

#include "core/config/recipe.h"
#include "core/mesh/gloo_mesh.h"
#include "core/plugin/registry.h"
#include "core/process/same_start.h"
#include "core/ranks/watch.h"

namespace ditto {

class Rank {
 public:
  explicit Rank(const RankInfo& info);

  // Runs `command`, which opens and meets on its way, and returns its exit code. Where there are several ranks, an
  // error ends all of them and is said once (RankWatch); a single one throws it. What this object holds outlives the
  // failure, since its end may wait for lost peers.
  int run(const std::function<int()>& command);

  // Finds the recipe's plugins, in `plugin_path` (--plugin-path) first, and takes its device: before any tensor is
  // made.
  void open(Recipe& recipe, const std::vector<std::string>& plugin_path);
  // Settles threads, meets the other ranks, and agrees on what the recipe leaves to be measured: before any tensor is
  // made, and after `open`. Throws Error(config) where they have started with something else: recipe, plugins, program,
  // or `more`.
  void meet(Recipe& recipe, Facts more = {});
  // After `meet`, where this process has worked by another recipe in between: threads and kernels are this one's again.
  void go_on(const Recipe& recipe) const;
  // Whether all ranks have the same; `topic`: "data", compared once. Throws Error(kind).
  void expect_same(const std::string& topic, const Facts& facts, ErrorKind kind) const;

  Registry& registry() { return *registry_; }
  const GlooMesh& mesh() const { return *mesh_; }
  RankWatch& watch() { return watch_; }

 private:
  RankInfo info_;
  std::optional<Registry> registry_;
  Transports transports_;
  std::optional<GlooMesh> mesh_;
  std::string recipe_;  // its name, for messages
  int threads_ = 1;
  RankWatch watch_;
};

}  // namespace ditto
