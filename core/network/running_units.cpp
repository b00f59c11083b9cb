#include "core/network/running_units.h"

#include <algorithm>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/components/strategies.h"
#include "core/config/numerics.h"
#include "core/plugin/guard.h"

namespace ditto {

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "bf16") return torch::kBFloat16;
  if (precision == "fp16") return torch::kHalf;
  return precision == "fp64" ? torch::kDouble : torch::kFloat;
}

RunningUnits::RunningUnits(const Mesh& mesh, std::shared_ptr<const OpTable> table, const Setting& setting)
    : mesh_(mesh, setting.copied), copied_(setting.copied), trains_(setting.trains) {
  ctx = std::make_unique<Context>(std::move(table), Random(setting.seed));
  ctx->compute = setting.compute;
  ctx->device = setting.device;
  if (!ctx->ops.table().exact() || setting.compute != torch::kBFloat16) return;
  ctx->compute = torch::kFloat;  // one number keeps fp32, and rounds what it multiplies
  ctx->ops.leaves().bf16 = true;
}

// Shapes alone: memory comes with the numbers, when what is not this rank's share is cut off. What is not updated is
// kept as it is computed with.
void RunningUnits::take(Units& units, const std::string& prefix,
                        const std::function<bool(const std::string& name)>& learns) {
  torch::NoGradGuard no_grad;
  for (auto& item : units.named_parameters()) {
    auto& leaf = item.value();
    const bool trains = trains_ && (!learns || learns(item.key()));
    const auto leaf_dtype = !trains || ctx->compute == torch::kDouble ? ctx->compute : torch::kFloat;
    free_storage(leaf);
    if (leaf.scalar_type() != leaf_dtype || leaf.device() != ctx->device) {
      const auto other = torch::empty(leaf.sizes(), torch::TensorOptions(leaf_dtype).device(ctx->device));
      free_storage(other);
      leaf.set_data(other);
    }
    if (!trains) leaf.set_requires_grad(false);
    (trains ? learned_ : frozen_) += leaf.numel();
  }
  for (auto& entry : Layout::of(units, prefix).entries) layout.entries.push_back(std::move(entry));
}

void RunningUnits::cut(Components& components, const Shape& shape, const std::function<void(ParallelStrategy&)>& wrap) {
  if (ctx->ops.table().exact()) ctx->token_leaf = components.recipe.run.token_leaf;
  AxisSet axes(kAxes.begin(), kAxes.end());
  for (const Axis axis : copied_) axes.erase(axis);
  if (!trains_) axes.erase(Axis::replicate);
  const ParallelStrategy::Needs needs{&mesh_,
                                      components.recipe.run.deterministic,
                                      shape.token_local,
                                      ctx->compute,
                                      shape.depth,
                                      shape.block_costs,
                                      shape.streams,
                                      sum_order(components.recipe),
                                      ctx->token_leaf};
  const auto whose = [&] { return shape.whose; };
  strategies = guarded(whose, [&] { return make_strategies(components, needs, axes, trains_); });
  if (trains_) refuse_unread_options(components.recipe, components.registry);
  guarded(whose, [&] {
    // The pipeline is last: until then each strategy sees all of the model.
    for (auto strategy = strategies.rbegin(); strategy != strategies.rend(); ++strategy) (*strategy)->claim(layout);
    for (auto& strategy : strategies) shard(*strategy);
  });
  for (auto* strategy : in_order_of_wrapping(strategies)) wrap(*strategy);
}

// A strategy that cuts nothing and gives an entry another leaf has moved it to the host's memory.
void RunningUnits::shard(ParallelStrategy& strategy) {
  std::vector<torch::Tensor> before;
  for (const auto& entry : layout.entries) before.push_back(entry.tensor);
  strategy.shard(layout);
  if (strategy.axis()) return;
  for (size_t i = 0; i < before.size(); ++i)
    if (!layout.entries[i].tensor.is_same(before[i])) on_host.insert(i);
}

void RunningUnits::fill(Weights weights) {
  if (weights == Weights::none) return;
  if (weights == Weights::initial) initialise(layout, ctx->random);
  for (auto& entry : layout.entries)
    if (is_freed(entry.tensor)) fill_storage(entry.tensor);
  if (weights == Weights::initial) parameters_changed();
}

void RunningUnits::parameters_changed() {
  torch::NoGradGuard no_grad;
  // A fused update is not seen by version counters, which tell compute copies to follow.
  for (auto& entry : layout.entries) entry.tensor.unsafeGetTensorImpl()->bump_version();
  for (auto& strategy : strategies) strategy->parameters_changed();
}

bool RunningUnits::in_step() const {
  return std::any_of(strategies.begin(), strategies.end(), [](const auto& strategy) { return strategy->in_step(); });
}

AxisSet copied_axes(const NetworkSection& section, AxisSet copied) {
  for (const auto& [text, degree] : section.parallel) {
    const auto at =
        std::find_if(kAxes.begin(), kAxes.end(), [&, &text = text](Axis axis) { return text == name(axis); });
    if (at == kAxes.end())
      throw Error(ErrorKind::config, section.component.where,
                  section.section() + ".parallel has no axis \"" + text + "\"",
                  "its axes are shard, tensor, context and expert");
    copied.insert(*at);
  }
  return copied;
}

}  // namespace ditto
