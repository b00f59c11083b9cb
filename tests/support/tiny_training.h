// A training of configs/MODEL_tiny.toml on one rank, in this process, for tests that look on.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/gloo_mesh.h"
#include "core/train/step.h"
#include "tests/support/files.h"

namespace ditto::test {

// All that a TrainingStep is made of.
struct TinyTraining {
  TinyTraining(const std::string& model, const std::vector<std::string>& sets)
      : recipe(Recipe::read(std::string(DITTO_SOURCE_DIR) + "/configs/" + model + "_tiny.toml", sets)),
        registry(std::vector<SearchFolder>{{plugin_folder(), "the test"}}),
        mesh(RankInfo{}, {}, std::chrono::seconds(60)),
        assembly(recipe, registry, mesh, parts(), {}),
        loader(assembly.train_data, recipe.loader, 0, [](const std::string&) {}),
        optimizer(assembly.make_optimizer()),
        ema(assembly.networks->learned(), recipe.ema) {}

  TrainingStep step() { return TrainingStep(assembly, loader, *optimizer, ema); }
  Tensors weights() const {
    Tensors list;
    for (const auto& entry : assembly.networks->learned().entries) list.push_back(entry.tensor.detach().clone());
    return list;
  }

  Recipe recipe;
  Registry registry;
  const GlooMesh mesh;
  Assembly assembly;
  Loader loader;
  std::shared_ptr<Optimizer> optimizer;
  Ema ema;

 private:
  static AssemblyParts parts() {
    AssemblyParts wanted;
    wanted.data = wanted.objective = true;
    return wanted;
  }
};

}  // namespace ditto::test
