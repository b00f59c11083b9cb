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

void check_recipe(const Recipe& recipe, Registry& registry) {
  const std::vector<std::pair<std::string, const Component*>> needed{{"data", &recipe.data},
                                                                     {"encoder.image", &recipe.image_encoder},
                                                                     {"model", &recipe.model},
                                                                     {"objective", &recipe.objective},
                                                                     {"optimizer", &recipe.optimizer}};
  for (const auto& [section, component] : needed) require(recipe, *component, section);
  make_op_table(recipe, registry, {});
  require_device(recipe);
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

void require_device(const Recipe& recipe) {
  if (recipe.run.device != "cuda" || torch::cuda::is_available()) return;
  throw Error(ErrorKind::config, recipe.name,
              at::hasCUDA() ? "run.device is \"cuda\", and no device of this kind is here"
                            : "run.device is \"cuda\", and this build of LibTorch has no CUDA",
              "set run.device = \"cpu\"");
}

}  // namespace ditto
