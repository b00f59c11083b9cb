#include "core/train/launch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <torch/torch.h>

#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/sampler.h>

#include "core/train/processor.h"

#include "core/train/assembly.h"

namespace ditto {

Degrees degrees(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  Degrees degrees{{Axis::pipeline, p.pipeline},
                  {Axis::shard, p.shard},
                  {Axis::context, p.context},
                  {Axis::expert, p.expert},
                  {Axis::tensor, p.tensor}};
  if (p.replicate > 0) degrees[Axis::replicate] = p.replicate;
  return degrees;
}

std::chrono::milliseconds timeout(const Recipe& recipe) {
  return std::chrono::milliseconds(static_cast<int64_t>(recipe.parallel.timeout_s * 1000));
}

std::vector<SearchFolder> search_folders(const Recipe& recipe) {
  std::vector<SearchFolder> folders;
  for (const auto& path : recipe.plugins.path)
    folders.push_back({(std::filesystem::path(recipe.run.folder) / path).lexically_normal().string(),
                       recipe.name + ": plugins.path"});
  return folders;
}

at::ScalarType compute_dtype(const RunOptions& run) {
  if (run.precision == "bf16") return torch::kBFloat16;
  return run.precision == "fp64" ? torch::kDouble : torch::kFloat;
}

void prepare_process(const Recipe& recipe, const RankInfo& rank) {
  const auto done = avoid_refused_instructions(compute_dtype(recipe.run));
  if (!done.empty() && rank.rank == 0) fmt::print(stderr, "{}\n", done);
  if (recipe.run.threads > 0) torch::set_num_threads(static_cast<int>(recipe.run.threads));
  if (recipe.run.threads > 0 || std::getenv("OMP_NUM_THREADS")) return;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  torch::set_num_threads(std::max(1, cores / std::max(1, rank.local_world_size)));
}

namespace {

template <class Interface>
void declare(Recipe& recipe, Registry& registry, const std::string& section, const Component& component) {
  if (!component) return;
  const auto& factory = registry.factory<Interface>(component.plugin, component.where);
  OptionReader reader(component.options);
  guarded(plugin_name(Interface::kKind, component.plugin) + ", reading its options", [&] { factory.declare(reader); });
  reader.finish();
  recipe.resolve(section, component.plugin, reader.declared());
}

}  // namespace

void declare_components(Recipe& recipe, Registry& registry) {
  declare<Model>(recipe, registry, "model", recipe.model);
  declare<Scheduler>(recipe, registry, "scheduler", recipe.scheduler);
  declare<Sampler>(recipe, registry, "sampler", recipe.sampler);
  declare<Objective>(recipe, registry, "objective", recipe.objective);
  declare<Optimizer>(recipe, registry, "optimizer", recipe.optimizer);
  declare<Source>(recipe, registry, "data", recipe.data);
  declare<Encoder>(recipe, registry, "encoder.image", recipe.image_encoder);
  declare<Encoder>(recipe, registry, "encoder.text", recipe.text_encoder);
}

void check_recipe(const Recipe& recipe, Registry& registry) {
  const std::vector<std::pair<std::string, const Component*>> needed{{"data", &recipe.data},
                                                                     {"encoder.image", &recipe.image_encoder},
                                                                     {"model", &recipe.model},
                                                                     {"objective", &recipe.objective},
                                                                     {"optimizer", &recipe.optimizer}};
  for (const auto& [section, component] : needed) require(recipe, *component, section);
  make_op_table(recipe, registry, {});
  if (!recipe.sampler) return;
  require(recipe, recipe.scheduler, "scheduler");
  const auto make = [&]<class Interface>(const Component& component, std::shared_ptr<Interface>& made) {
    OptionReader reader(component.options);
    made = registry.factory<Interface>(component.plugin, component.where).make(reader, {});
  };
  std::shared_ptr<Scheduler> scheduler;
  std::shared_ptr<Sampler> sampler;
  make(recipe.scheduler, scheduler);
  make(recipe.sampler, sampler);
  refuse_pair(recipe, *sampler, *scheduler);
}

}  // namespace ditto
