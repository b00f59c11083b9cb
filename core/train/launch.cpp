#include "core/train/launch.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include <torch/torch.h>

#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/sampler.h>

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

void set_threads(const Recipe& recipe, const RankInfo& rank) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t share = std::max<int64_t>(1, cores / std::max(1, rank.local_world_size));
  torch::set_num_threads(static_cast<int>(recipe.run.threads > 0 ? recipe.run.threads : share));
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

}  // namespace ditto
